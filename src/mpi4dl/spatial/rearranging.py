"""flip, roll and rot90. The cuts stay where they were, and the pixels move."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ..comm.exchange import transfer
from ..geometry import Box, Interval, Layout, Transfer
from .assembly import Segment, assemble, check_apart, segments_of
from .registry import refuse, spatial_op_named
from .slicing import negative, on_meta
from .tile import Tile, alias, wrap


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    """`f(x, 1, 2)` and `f(x, (1, 2))` alike."""
    first = values[0] if len(values) == 1 else values
    return (int(first),) if isinstance(first, int) else tuple(int(v) for v in first)


@spatial_op_named("flip")
def flip(func: Any, input: Tile, *args: Any, dims: Sequence[int] | None = None) -> Tile:
    given = _numbers(args if args else (dims,))
    on_meta(input).flip(given)  # PyTorch's errors
    return _flipped(func, input, tuple(negative(input, d) for d in given))


@spatial_op_named("fliplr", "flipud")
def flip_by_name(func: Any, input: Tile) -> Tile:
    func(on_meta(input))
    dim = 1 if func.__name__ == "fliplr" else 0
    return _flipped(func, input, (negative(input, dim),))


def _flipped(func: Any, tile: Tile, dims: tuple[int, ...]) -> Tile:
    placement, local = tile.placement, alias(tile)
    for dim in dims:
        check_apart(func, tile, dim)
    axes = tuple(sorted(placement.dims.index(d) for d in dims if d in placement.cut_dims))
    if axes:
        if placement.joined:
            refuse(
                func,
                "split dimensions were flattened into one",
                "Flip before flattening",
            )
        local = transfer(local, _mirrored(placement.layout, axes), placement.dims, placement.comm)
    return wrap(local.flip(dims), placement)


@lru_cache(maxsize=4096)
def _mirrored(layout: Layout, axes: tuple[int, ...]) -> Transfer:
    """Every rank wants the mirror image of its box."""

    def mirror(box: Box) -> Box:
        return Box(
            tuple(
                Interval(n - part.stop, n - part.start) if axis in axes else part
                for axis, (part, n) in enumerate(zip(box, layout.size, strict=True))
            )
        )

    return Transfer(layout, tuple(mirror(box) for box in layout.boxes))


@spatial_op_named("roll")
def roll(
    func: Any, input: Tile, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Tile:
    if dims is None or dims == () or dims == []:
        refuse(func, "without dims it rolls the flattened tensor", "Name the dimensions")
    by, over = _numbers((shifts,)), _numbers((dims,))
    on_meta(input).roll(by, over)  # PyTorch's errors
    out = input
    for shift, dim in zip(by, over, strict=True):
        out = _rolled(func, out, shift, negative(input, dim))
    return wrap(alias(out), input.placement)


def _rolled(func: Any, tile: Tile, shift: int, dim: int) -> Tile:
    check_apart(func, tile, dim)
    placement = tile.placement
    if dim not in placement.cut_dims:
        return wrap(alias(tile).roll(shift, dim), placement)
    if placement.joined:
        refuse(func, "other split dimensions were flattened into one", "Roll before flattening")
    n = tile.global_shape[dim]
    shift %= n
    segments = segments_of(Segment(shift, n - shift), Segment(n - shift, 0))
    return assemble([tile], dim, segments, placement)


@spatial_op_named("rot90")
def rot90(func: Any, input: Tile, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tile:
    torch.rot90(on_meta(input), k, list(dims))  # PyTorch's errors
    first, second = (negative(input, d) for d in dims)
    k %= 4
    flipped = {0: (), 1: (second,), 2: (first, second), 3: (first,)}[k]
    for dim in (first, second):
        check_apart(func, input, dim)
    out = _flipped(func, input, flipped)
    if k % 2 == 0:
        return out
    return out.transpose(first, second)  # type: ignore[return-value]
