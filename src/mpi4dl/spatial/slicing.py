"""Parts of a tile along a dimension: narrow, select, split and their kin.

Pixels stay on the rank that holds them, so taking a part sends nothing and the result is a view,
as it is in one process: writing to it writes to the tile. A rank outside the part ends empty.

One index along a cut dimension takes that dimension away. While another dimension is still cut
the result is a tile, held by the ranks that had the row; otherwise it is one row without any cut
dimension left, a plain tensor that every rank gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..comm.exchange import transfer
from ..geometry import Box, Interval, Layout, Transfer
from .assembly import Rescale, check_apart, resized
from .placement import Placement, ordered
from .registry import named, no_intercept, refuse, spatial_op, spatial_op_named
from .tile import Tile, alias, wrap


def on_meta(tile: Tensor) -> Tensor:
    """A tensor of the global shape without data: PyTorch's own checks, alike on every rank."""
    return torch.empty(tile.shape, dtype=tile.dtype, device="meta")


def negative(tensor: Tensor, dim: int) -> int:
    """The dimension counted from the right; PyTorch's error if there is none."""
    n = tensor.ndim
    if not -n <= dim < n:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})"
        )
    return dim - n if dim >= 0 else dim


def strided(tile: Tile, dim: int, start: int, size: int, step: int = 1) -> Tile:
    """`size` cells along the (negative) dimension from `start`, every `step`-th. A view."""
    placement = tile.placement
    after = resized(placement, dim, size, Rescale(offset=-start, down=step))
    first, count = start, size
    axis = placement.axis_of(dim)
    if axis is not None and axis in placement.layout.cut_axes:
        mine = after.box[axis]
        first, count = start + mine.start * step - placement.box[axis].start, mine.size
    part = slice(first, first + (count - 1) * step + 1, step) if count else slice(0, 0)
    return wrap(alias(tile)[(..., part, *[slice(None)] * (-dim - 1))], after)


# ── one index ────────────────────────────────────────────────────────────────────────────────────


def _selected(layout: Layout, axis: int, index: int) -> Layout:
    """One position of a cut axis: ranks that do not hold it end with nothing of another cut one."""
    emptied = next(a for a in layout.cut_axes if a != axis)

    def rest(box: Box) -> Box:
        held = box[axis].start <= index < box[axis].stop
        return Box(
            tuple(
                part if held or a != emptied else Interval(part.start, part.start)
                for a, part in enumerate(box)
                if a != axis
            )
        )

    sizes = (*layout.size[:axis], *layout.size[axis + 1 :])
    return Layout(sizes, tuple(rest(box) for box in layout.boxes))


@lru_cache(maxsize=16384)
def _after_select(placement: Placement, dim: int, index: int) -> Placement | None:
    """The placement after one `index` of dimension `dim` was taken; None if nothing stays cut."""
    if dim not in placement.cut_dims:
        return placement.without((dim,), keep=False)
    axis = placement.dims.index(dim)
    if placement.layout.cut_axes == (axis,):
        return None
    dims = tuple(d + 1 if d < dim else d for d in placement.dims if d != dim)
    return ordered(_selected(placement.layout, axis, index), dims, placement.comm)


@spatial_op_named("select")
def select(func: Any, input: Tile, dim: int, index: int) -> Tensor:
    return selected(func, input, negative(input, dim), int(index))


def selected(func: Any, tile: Tile, dim: int, index: int) -> Tensor:
    """`tile.select(dim, index)` for a negative dimension."""
    n = tile.global_shape[dim]
    if not -n <= index < n:
        raise IndexError(f"select(): index {index} out of range for dimension {dim} of size {n}")
    index %= n
    check_apart(func, tile, dim)
    placement, local = tile.placement, alias(tile)
    if dim in placement.cut_dims and placement.joined:
        refuse(
            func,
            f"dimension {dim} is split over ranks and others were flattened into one",
            "Take the index before flattening",
        )
    left = _after_select(placement, dim, index)
    if dim not in placement.cut_dims:
        row = local.select(dim, index)
        return row if left is None else wrap(row, left)
    axis = placement.dims.index(dim)
    if left is None:
        moves = _to_everyone(placement.layout, axis, index)
        return transfer(local, moves, placement.dims, placement.comm).select(dim, 0)
    own = placement.box[axis]
    if own.start <= index < own.stop:
        return wrap(local.select(dim, index - own.start), left)
    shape = [*tile.global_shape]
    del shape[dim]
    # Still a view, so that writing to it is part of every rank's backward.
    return wrap(local.narrow(dim, 0, 0).view(left.local_shape(shape)), left)


@lru_cache(maxsize=4096)
def _to_everyone(layout: Layout, axis: int, index: int) -> Transfer:
    """Every rank wants the cells at one position of the only cut axis."""
    whole = Box.full(layout.size).intervals
    row = Box((*whole[:axis], Interval(index, index + 1), *whole[axis + 1 :]))
    return Transfer(layout, (row,) * layout.ranks)


@spatial_op_named("unbind")
def unbind(func: Any, input: Tile, dim: int = 0) -> tuple[Tensor, ...]:
    dim = negative(input, dim)
    check_apart(func, input, dim)
    if dim in input.placement.cut_dims:
        refuse(
            func,
            f"dimension {dim} is split over ranks, and a list of its rows would be one small "
            "transfer for each of them",
            "Use split or chunk, or select the rows that are wanted",
        )
    return tuple(selected(func, input, dim, i) for i in range(input.global_shape[dim]))


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────


@spatial_op_named("narrow", "narrow_copy")
def narrow(func: Any, input: Tile, dim: int, start: int, length: int) -> Tile:
    dim, start = negative(input, dim), int(start)
    on_meta(input).narrow(dim, start, length)
    check_apart(func, input, dim)
    start = start + input.global_shape[dim] if start < 0 else start
    out = strided(input, dim, start, length)
    return out.clone() if func.__name__ == "narrow_copy" else out  # type: ignore[return-value]


@spatial_op_named("chunk", "unsafe_chunk", "tensor_split")
def parts(func: Any, input: Tile, *args: Any, dim: int = 0, **kwargs: Any) -> tuple[Tile, ...]:
    """How many or where, then the dimension."""
    (how, *rest) = args if args else kwargs.values()
    dim = negative(input, rest[0] if rest else dim)
    how = how.tolist() if isinstance(how, Tensor) else how
    return _like_pieces(func, input, func(on_meta(input), how, dim), dim)


@spatial_op(*named("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes"))
def split(func: Any, tensor: Tile, *args: Any, dim: int = 0, **kwargs: Any) -> tuple[Tile, ...]:
    """One size for all parts or a size for each, then the dimension."""
    (sizes, *rest) = args if args else kwargs.values()
    dim = negative(tensor, rest[0] if rest else dim)
    return _like_pieces(func, tensor, on_meta(tensor).split(sizes, dim), dim)


@spatial_op_named("hsplit", "vsplit", "dsplit")
def split_by_name(func: Any, input: Tile, *args: Any, **kwargs: Any) -> tuple[Tile, ...]:
    given = args if args else tuple(kwargs.values())
    how = given[0] if len(given) == 1 else given
    func(on_meta(input), how)
    dim = {"hsplit": 1 if input.ndim > 1 else 0, "vsplit": 0, "dsplit": 2}[func.__name__]
    return torch.tensor_split(input, how, dim)  # type: ignore[return-value]


def _like_pieces(func: Any, tile: Tile, pieces: Sequence[Tensor], dim: int) -> tuple[Tile, ...]:
    """Views of the tile where the `pieces` are views of a tensor of its global shape."""
    check_apart(func, tile, dim)
    n = tile.global_shape[dim]
    inner = 1
    for size in tile.global_shape[tile.ndim + dim + 1 :]:
        inner *= size
    result, at = [], 0
    for piece in pieces:
        size = piece.shape[dim]
        start = piece.storage_offset() // inner if inner and size else min(at, n)
        result.append(strided(tile, dim, start, size))
        at = start + size
    return tuple(result)


@spatial_op_named("index_select")
def index_select(func: Any, input: Tile, dim: int, index: Tensor) -> Tile:
    dim = negative(input, dim)
    check_apart(func, input, dim)
    if isinstance(index, Tile) or not isinstance(input, Tile):
        refuse(func, "the index must be an ordinary tensor", "Call .full_tensor() on the index")
    if dim in input.placement.cut_dims:
        refuse_cut_index(func, dim)
    with no_intercept():
        out = func(alias(input), dim, index)
    return wrap(out, resized(input.placement, dim, index.numel()))


def refuse_cut_index(func: Any, dim: int) -> NoReturn:
    refuse(
        func,
        f"dimension {dim} is split over ranks and cannot be indexed by a tensor, a list or a mask",
        "Use slices there, or multiply by the mask",
    )
