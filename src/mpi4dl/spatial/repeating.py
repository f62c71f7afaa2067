"""repeat, tile, repeat_interleave and expand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .assembly import Rescale, Segment, assemble, check_apart, resized
from .registry import no_intercept, refuse, spatial_op, spatial_op_named
from .slicing import negative, on_meta, refuse_cut_index, strided
from .tile import Tile, alias, wrap


def _numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """`f(x, 1, 2)`, `f(x, (1, 2))` and `f(x, sizes=(1, 2))` alike."""
    values = args or tuple(kwargs.values())
    if len(values) == 1 and not isinstance(values[0], int):
        values = tuple(values[0])
    return tuple(int(v) for v in values)


@spatial_op_named("repeat", "tile")
def repeat(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Tile:
    times = _numbers(args, kwargs)
    if func.__name__ == "tile":
        times = (1,) * (input.ndim - len(times)) + times
    on_meta(input).repeat(times)  # PyTorch's errors
    by_dim = {dim: times[dim] for dim in range(-len(times), 0) if times[dim] != 1}
    out = input
    for dim, count in by_dim.items():
        if dim >= -input.ndim:
            check_apart(func, input, dim)
        if dim in input.placement.cut_dims:
            out = _copies(func, out, dim, count)
    whole = [1 if d in input.placement.cut_dims else times[d] for d in range(-len(times), 0)]
    placement = out.placement
    for dim, count in by_dim.items():
        if dim >= -input.ndim and dim not in input.placement.cut_dims:
            placement = resized(placement, dim, input.shape[dim] * count)
    return wrap(alias(out).repeat(whole), placement)


def _copies(func: Any, tile: Tile, dim: int, count: int) -> Tile:
    """Several times the whole of a cut dimension."""
    if tile.placement.joined:
        refuse(func, "other split dimensions were flattened into one", "Repeat before flattening")
    if not count:
        return strided(tile, dim, 0, 0)
    n = tile.global_shape[dim]
    out = resized(tile.placement, dim, n * count, Rescale(up=count))
    return assemble([tile], dim, (Segment(n, 0),) * count, out)


@spatial_op_named("repeat_interleave")
def repeat_interleave(
    func: Any,
    input: Tile,
    repeats: int | Tensor,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tile:
    """Every cell stays where it is, and becomes several."""
    if not isinstance(input, Tile) or isinstance(repeats, Tile):
        refuse(func, "the counts must be ordinary", "Call .full_tensor() on them")
    if dim is None:
        refuse(func, "without dim it flattens the tensor", "Name the dimension")
    dim = negative(input, dim)
    check_apart(func, input, dim)
    cut = dim in input.placement.cut_dims
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats)
    if cut and isinstance(repeats, Tensor):
        refuse_cut_index(func, dim)
    with no_intercept():
        out = func(alias(input), repeats, dim)
    if isinstance(repeats, Tensor):
        return wrap(out, resized(input.placement, dim, out.shape[dim]))
    size = input.global_shape[dim] * repeats
    return wrap(out, resized(input.placement, dim, size, Rescale(up=repeats)))


# ── views of one cell as many ────────────────────────────────────────────────────────────────────


@spatial_op_named("expand", "broadcast_to")
def expand(func: Any, input: Tile, *args: Any, implicit: bool = False, **kwargs: Any) -> Tile:
    shape = tuple(on_meta(input).expand(_numbers(args, kwargs)).shape)
    return _expanded(func, input, shape)


@spatial_op_named("expand_as")
def expand_as(func: Any, input: Tensor, other: Tensor) -> Tensor:
    return input.expand(other.shape)


@spatial_op(torch.broadcast_tensors)
def broadcast_tensors(func: Any, *tensors: Any) -> tuple[Tensor, ...]:
    given: Sequence[Tensor] = tensors if isinstance(tensors[0], Tensor) else tensors[0]
    shape = torch.broadcast_shapes(*(t.shape for t in given))
    return tuple(t.expand(shape) for t in given)


def _expanded(func: Any, tile: Tile, shape: tuple[int, ...]) -> Tile:
    placement, before = tile.placement, tile.global_shape
    here = list(shape)
    for dim, size in tile.placement.global_sizes.items():
        if shape[dim] == size:
            here[dim] = -1
            continue
        check_apart(func, tile, dim)
        if dim in placement.cut_dims:
            refuse(
                func,
                f"dimension {dim} of size {before[dim]} is split over ranks: one of them has it",
                "Reduce the dimension with keepdim=True, which leaves it on every rank",
            )
        placement = resized(placement, dim, shape[dim])
    return wrap(alias(tile).expand(here), placement)
