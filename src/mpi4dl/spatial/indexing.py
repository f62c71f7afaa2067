"""`tile[...]` and `tile[...] = value`.

Integers, slices, None and Ellipsis are taken one dimension at a time; each is a view. Index
tensors, lists and masks may then address dimensions that are not cut.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from .assembly import check_apart
from .elementwise import check_not_severed
from .placement import Placement
from .registry import no_intercept, refuse, spatial_op
from .slicing import on_meta, refuse_cut_index, selected, strided
from .tile import Tile, alias, narrowed, redistribute, wrap

Advanced = list[tuple[int, Tensor]]  # (dimension from the left, index tensor)


@spatial_op(torch.Tensor.__getitem__)
def getitem(func: Any, tensor: Tensor, index: Any) -> Tensor:
    view, advanced = _views(func, tensor, index)
    if not advanced:
        return wrap(alias(view), view.placement) if isinstance(view, Tile) else view
    where = _full_index(advanced)
    if not isinstance(view, Tile):
        return view[where]
    placement = _after_gather(func, view, advanced)
    out = alias(view)[where]
    return out if placement is None else wrap(out, placement)


@spatial_op(torch.Tensor.__setitem__)
def setitem(func: Any, tensor: Tensor, index: Any, value: Any) -> None:
    if not isinstance(tensor, Tile):
        refuse(
            func,
            "a plain tensor, which every rank holds whole, cannot take a tile as a part",
            "Make it a tile with mpi4dl.shard, or gather the tile with .full_tensor()",
        )
    check_not_severed(func, tensor)
    if _is_mask_of(tensor, index) and _is_scalar(value):
        tensor.masked_fill_(index, value)
        return
    view, advanced = _views(func, tensor, index)
    placement = view.placement if isinstance(view, Tile) else None
    if advanced and isinstance(view, Tile):
        placement = _after_gather(func, view, advanced)
    if placement is None:
        refuse(
            func,
            "one position of the only split dimension is a copy on every rank, not a view",
            "Index it by a slice of length 1, which stays a view",
        )
    if not _is_scalar(value):
        value = _part(func, value, placement, _shape_after(view, advanced))
    with no_intercept():
        if advanced:
            view[_full_index(advanced)] = value
        elif isinstance(value, Tensor):
            view.copy_(value)
        else:
            view.fill_(value)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not isinstance(value, Tile)
    return isinstance(value, Number)


def _is_mask_of(tensor: Tensor, index: Any) -> bool:
    """A mask of the whole tensor: filling under it is an elementwise operator."""
    return isinstance(index, Tensor) and index.dtype == torch.bool and index.shape == tensor.shape


def _part(func: Any, value: Any, placement: Placement, shape: tuple[int, ...]) -> Tensor:
    """What this rank's part of a view of the global `shape` is assigned from `value`."""
    if not isinstance(value, Tensor):
        raise TypeError(f"can't assign a {type(value).__name__} to a tile")
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0]
    on_meta(value).expand(shape)  # PyTorch's error if it does not fit
    if not isinstance(value, Tile):
        return narrowed(value, placement)
    sizes = {**value.placement.global_sizes, **placement.global_sizes}
    if any(value.ndim < -d or value.shape[d] != shape[d] for d in sizes):
        refuse(
            func,
            f"a tile of {tuple(value.shape)} would be broadcast over {shape}, which is split",
            "Expand it to the full size first",
        )
    return redistribute(value, placement)


# ── integers, slices, None ───────────────────────────────────────────────────────────────────────


def _views(func: Any, tensor: Tensor, index: Any) -> tuple[Tensor, Advanced]:
    """The tensor after all views, and the index tensors that are still to be applied to it."""
    view, advanced, dim = tensor, [], 0
    for item in _items(func, tensor, index):
        if isinstance(item, Tensor):
            advanced += [(dim + i, t) for i, t in enumerate(_positions(view, dim, item))]
            dim += max(1, item.ndim if item.dtype == torch.bool else 1)
        elif item is None:
            view = view.unsqueeze(dim)
            dim += 1
        elif isinstance(item, slice):
            view = _sliced(func, view, dim, item)
            dim += 1
        elif isinstance(view, Tile):
            view = selected(func, view, dim - view.ndim, item)
        else:
            view = view.select(dim, item)
    return view, advanced


def _items(func: Any, tensor: Tensor, index: Any) -> list[Any]:
    """The index as integers, slices, None and tensors, with Ellipsis written out."""
    given = list(index) if isinstance(index, tuple) else [index]
    items = [_item(func, i) for i in given]
    if not any(isinstance(i, Tensor) for i in items):
        on_meta(tensor)[tuple(items)]  # PyTorch's errors
    taken = sum(_dimensions_of(i) for i in items)
    if taken > tensor.ndim:
        raise IndexError(f"too many indices for tensor of dimension {tensor.ndim}")
    dots = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if dots:
        items[dots[0] : dots[0] + 1] = [slice(None)] * (tensor.ndim - taken)
    return items


def _item(func: Any, item: Any) -> Any:
    if isinstance(item, Tile):
        refuse(
            func,
            "the index is a tile, and what it picks depends on all ranks' values",
            "Multiply by a mask, use torch.where, or call .full_tensor() on the index",
        )
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, Sequence) or hasattr(item, "__array__"):
        item = torch.as_tensor(item)
        item = item.long() if item.numel() == 0 and item.dtype != torch.bool else item
    if isinstance(item, bool) or (
        isinstance(item, Tensor) and item.ndim == 0 and item.dtype == torch.bool
    ):
        refuse(func, "a single True or False as an index adds a dimension", "Use None for that")
    if isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex()):
        raise IndexError(f"tensors used as indices must be integers or bool, and not {item.dtype}")
    if isinstance(item, Tensor) and item.ndim:
        return item.bool() if item.dtype == torch.uint8 else item  # an old way to write masks
    return operator.index(item)


def _dimensions_of(item: Any) -> int:
    """How many dimensions of the tensor an item of the index is about."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _sliced(func: Any, tensor: Tensor, dim: int, part: slice) -> Tensor:
    n = tensor.shape[dim]
    start, stop, step = part.indices(n)
    if step < 1:
        raise ValueError("step must be greater than zero")
    size = max(0, -((start - stop) // step))
    if (start, size, step) == (0, n, 1):
        return tensor
    if not isinstance(tensor, Tile):
        return tensor[(*[slice(None)] * dim, part)]
    check_apart(func, tensor, dim - tensor.ndim)
    return strided(tensor, dim - tensor.ndim, start, size, step)


# ── index tensors ────────────────────────────────────────────────────────────────────────────────


def _positions(view: Tensor, dim: int, index: Tensor) -> Sequence[Tensor]:
    """The index as one tensor of positions for each dimension; checked, as empty tiles must err."""
    if index.dtype == torch.bool:
        sizes = tuple(view.shape[dim : dim + index.ndim])
        if tuple(index.shape) != sizes:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} does not match the shape {list(sizes)} "
                "of the indexed dimensions"
            )
        return index.nonzero(as_tuple=True)
    n = view.shape[dim]
    if index.device.type == "cpu" and index.numel():
        low, high = int(index.min()), int(index.max())
        if low < -n or high >= n:
            raise IndexError(
                f"index {high if high >= n else low} is out of bounds for dimension {dim} "
                f"with size {n}"
            )
    return (index.long(),)


def _full_index(advanced: Advanced) -> tuple[Any, ...]:
    where: list[Any] = [slice(None)] * (advanced[-1][0] + 1)
    for dim, index in advanced:
        where[dim] = index
    return tuple(where)


def _rearrangement(ndim: int, advanced: Advanced) -> tuple[list[int], int, tuple[int, ...]]:
    """Dimensions that stay, where among them the indexed ones go, and the shape of those.

    By PyTorch's rule: in their place if they are neighbours, else in front.
    """
    dims = [dim for dim, _ in advanced]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    kept = [dim for dim in range(ndim) if dim not in dims]
    shape = tuple(torch.broadcast_shapes(*(index.shape for _, index in advanced)))
    return kept, dims[0] if adjacent else 0, shape


def _after_gather(func: Any, view: Tile, advanced: Advanced) -> Placement | None:
    gone = tuple(dim - view.ndim for dim, _ in advanced)
    for dim in gone:
        check_apart(func, view, dim)
        if dim in view.placement.cut_dims:
            refuse_cut_index(func, dim)
    placement = view.placement.without(gone, keep=False)
    if placement is None:
        return None
    kept, lead, shape = _rearrangement(view.ndim, advanced)
    before = range(-len(kept), lead - len(kept))
    return placement.moved({dim: dim - len(shape) for dim in before})


def _shape_after(view: Tensor, advanced: Advanced) -> tuple[int, ...]:
    if not advanced:
        return tuple(view.shape)
    kept, lead, shape = _rearrangement(view.ndim, advanced)
    sizes = [view.shape[dim] for dim in kept]
    return (*sizes[:lead], *shape, *sizes[lead:])
