"""Padding. Borders of the image are padded; borders between tiles never are.

Pixels stay where they are: the ranks at the border of the image hold the padding in addition, so
constant padding and cropping send nothing, and the other modes only what the padding copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .assembly import Rescale, Segment, assemble, check_apart, resized, segments_of
from .registry import refuse, spatial_op
from .slicing import strided
from .tile import Tile, alias, wrap

Sides = dict[int, tuple[int, int]]  # (negative) dimension: cells before and after


@spatial_op(F.pad, torch._C._nn.pad)
def pad(
    func: Any,
    input: Tile,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Tile:
    pads = tuple(int(p) for p in pad)
    _check(input.global_shape, pads, mode, input.dtype)
    sides = {
        -1 - i: (pads[2 * i], pads[2 * i + 1])
        for i in range(len(pads) // 2)
        if pads[2 * i] or pads[2 * i + 1]
    }
    for dim in sides:
        check_apart(func, input, dim)
    if mode == "constant":
        return _constant(input, sides, value)
    cut = [dim for dim in sides if dim in input.placement.cut_dims]
    out = _whole_dimensions(
        input, {d: s for d, s in sides.items() if d not in cut}, len(pads), mode
    )
    for dim in cut:
        out = _copied(func, out, dim, *sides[dim], mode)
    return out


@spatial_op(torch.constant_pad_nd)
def constant_pad_nd(func: Any, input: Tile, pad: Sequence[int], value: float = 0) -> Tile:
    return F.pad(input, list(pad), "constant", value)  # type: ignore[return-value]


@lru_cache(maxsize=4096)
def _check(shape: tuple[int, ...], pads: tuple[int, ...], mode: str, dtype: torch.dtype) -> None:
    """PyTorch's own rules, asked about the global shape: the same answer on every rank."""
    F.pad(torch.empty(shape, dtype=dtype, device="meta"), pads, mode)


def _constant(tile: Tile, sides: Sides, value: float | None) -> Tile:
    before = after = tile.placement
    for dim, (first, last) in sides.items():
        size = tile.global_shape[dim] + first + last
        after = resized(after, dim, size, Rescale(offset=first))
    here: list[int] = []
    for dim in range(-1, min(sides, default=0) - 1, -1):
        first, last = sides.get(dim, (0, 0))
        axis = before.axis_of(dim)
        if axis is not None and dim in before.cut_dims:
            # What this rank holds afterwards, in the coordinates of the unpadded image.
            own, new = before.box[axis], after.box[axis].shift(-first)
            # A tile that is cropped away shrinks to nothing from one side.
            first, last = (
                (-own.size, 0) if new.empty else (own.start - new.start, new.stop - own.stop)
            )
        here += [first, last]
    return wrap(alias(F.pad(alias(tile), here, "constant", value)), after)


def _whole_dimensions(tile: Tile, sides: Sides, count: int, mode: str) -> Tile:
    """Dimensions that are not cut: PyTorch's kernel, which refuses tensors without pixels."""
    if not sides:
        return tile
    placement = tile.placement
    for dim, (before, after) in sides.items():
        placement = resized(placement, dim, tile.global_shape[dim] + before + after)
    local = alias(tile)
    here = [side for dim in range(-1, -1 - count // 2, -1) for side in sides.get(dim, (0, 0))]
    if local.numel():
        return wrap(alias(F.pad(local, here, mode)), placement)
    # The dtype is that of the other ranks, which autocast may have changed.
    kind = F.pad(local.new_zeros([max(n, 1) for n in local.shape]), here, mode).dtype
    return wrap(alias(F.pad(local, here).to(kind)), placement)


def _copied(func: Any, tile: Tile, dim: int, before: int, after: int, mode: str) -> Tile:
    """One cut dimension in a mode that copies pixels of the image."""
    start, stop = max(0, -before), tile.global_shape[dim] - max(0, -after)
    if stop <= start:
        refuse(
            func,
            f"{mode} padding by ({before}, {after}) crops all of dimension {dim} away",
            "Crop and pad in two steps",
        )
    first, last = max(0, before), max(0, after)
    if mode == "circular":
        tile, start, stop = strided(tile, dim, start, stop - start), 0, stop - start
        if max(first, last) > stop:
            refuse(
                func,
                f"circular padding by ({before}, {after}) wraps around more than once what it "
                f"leaves of dimension {dim}",
                "Crop and pad in two steps",
            )
    n = tile.global_shape[dim]
    heads, tails = {
        "reflect": (Segment(first, first, -1), Segment(last, n - 2, -1)),
        "replicate": (Segment(first, 0, 0), Segment(last, n - 1, 0)),
        "circular": (Segment(first, n - first), Segment(last, 0)),
    }[mode]
    segments = segments_of(heads, Segment(stop - start, start), tails)
    size = first + stop - start + last
    out = resized(tile.placement, dim, size, Rescale(offset=first - start))
    return assemble([tile], dim, segments, out)


def _padded_like(mode: str) -> Any:
    def handler(func: Any, input: Tensor, padding: Sequence[int]) -> Tensor:
        return F.pad(input, list(padding), mode)

    return handler


for _n in (1, 2, 3):
    spatial_op(getattr(torch._C._nn, f"reflection_pad{_n}d"))(_padded_like("reflect"))
    spatial_op(getattr(torch._C._nn, f"replication_pad{_n}d"))(_padded_like("replicate"))
