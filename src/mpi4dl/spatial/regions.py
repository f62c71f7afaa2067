"""The shared mechanism of operators with a window: fetch what the output reads, compute, crop.

    own tile ──fetch──▶ region that the output reads ──kernel──▶ own part of the output
            (transfer; what lies outside the image is the fill value)

A rank that ends without output runs the kernel once over a region wholly outside the image and
crops everything away, so that it takes part in backward like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import torch.nn.functional as F
from torch import Tensor

from ..comm.exchange import transfer
from ..geometry import Box, Interval, Layout, SlidingWindow, Transfer, WholeWindow, Window
from .placement import Placement
from .registry import refuse
from .tile import Tile, alias, wrap

Windows = tuple[tuple[int, Window], ...]  # (negative tensor dimension, window)
Native = Callable[[Tensor], Tensor]  # a kernel that pads its input as if it were the image


@dataclass(frozen=True)
class WindowPlan:
    """Everything that a shape determines, for all ranks."""

    placement: Placement
    moves: Transfer
    out: tuple[tuple[int, Interval], ...]  # what this rank computes: (dimension, interval)
    reads: tuple[tuple[int, Interval], ...]  # what it reads for that
    empty: tuple[int, ...]  # dimensions in which this rank ends without output
    alone: bool  # nothing is sent, and this rank's outputs are those of its tile as an image


Kernel = Callable[[Tensor, WindowPlan], Tensor]


@lru_cache(maxsize=16384)
def plan(placement: Placement, windows: Windows) -> WindowPlan:
    layout = placement.layout
    for dim, window in windows:
        axis = placement.dims.index(dim)
        layout = _remapped(layout, axis, window)
    by_axis = {placement.dims.index(dim): window for dim, window in windows}
    targets = tuple(_reads(box, by_axis) for box in layout.boxes)
    moves = Transfer(placement.layout, targets)
    mine, read = layout.boxes[placement.comm.rank], targets[placement.comm.rank]
    return WindowPlan(
        placement=placement.with_layout(layout),
        moves=moves,
        out=tuple((dim, mine[placement.dims.index(dim)]) for dim, _ in windows),
        reads=tuple((dim, read[placement.dims.index(dim)]) for dim, _ in windows),
        empty=tuple(dim for dim, _ in windows if mine[placement.dims.index(dim)].empty),
        alone=moves.is_local and native_outputs(placement, placement.box, windows) == mine,
    )


@lru_cache(maxsize=16384)
def _remapped(layout: Layout, axis: int, window: Window) -> Layout:
    return layout.remap(axis, window.out_size, window.cut)


def _reads(out: Box, windows: dict[int, Window]) -> Box:
    return Box(
        tuple(
            _reads_or_phantom(part, windows[axis]) if axis in windows else part
            for axis, part in enumerate(out)
        )
    )


def _reads_or_phantom(out: Interval, window: Window) -> Interval:
    """What `out` reads; for no output, the window of one output moved outside the image."""
    if not out.empty:
        return window.reads(out)
    size = window.reads(Interval(0, 1)).size
    start = window.in_size + size
    return Interval(start, start + size)


@lru_cache(maxsize=4096)
def native_outputs(placement: Placement, extent: Box, windows: Windows) -> Box | None:
    """What a kernel makes of the box `extent` alone if it pads that as if it were the image.

    None if its outputs would not lie on those of the image.
    """
    parts = list(extent)
    for dim, window in windows:
        axis = placement.dims.index(dim)
        held = extent[axis]
        if not isinstance(window, SlidingWindow):
            parts[axis] = Interval(0, window.out_size)
            continue
        if held.start % window.stride or held.size <= window.reach:
            return None
        first = held.start // window.stride
        count = (held.size + 2 * window.padding - window.reach - 1) // window.stride + 1
        parts[axis] = Interval(first, first + count)
    return Box(tuple(parts))


def fetch(tile: Tile, moves: Transfer, fill: float = 0.0) -> Tensor:
    """This rank's target box as a plain tensor."""
    return transfer(alias(tile), moves, tile.placement.dims, tile.placement.comm, fill)


def windowed(
    tile: Tile,
    windows: Windows,
    kernel: Kernel,
    fill: float = 0.0,
    native: Native | None = None,
) -> Tile:
    """Fetch, compute, crop. `kernel` pads nothing in the dimensions that have a window.

    `native` is the kernel with the padding of the layer, where it is the same on both sides.
    """
    if tile.margin is not None:
        return tile.margin.windowed(tile, windows, kernel, fill, native)
    p = plan(tile.placement, windows)
    local = alias(tile)
    if native is not None and p.alone and local.numel():
        return wrap(native(local), p.placement)
    region = fetch(tile, p.moves, fill)
    # Many kernels refuse a tensor without channels, which only some of the ranks may have.
    around = [d for d in range(-region.ndim, 0) if region.shape[d] == 0 and d not in dict(windows)]
    for dim in around:
        region = F.pad(region, [0, 0] * (-dim - 1) + [0, 1])
    out = kernel(region, p)
    for dim in (*p.empty, *around):
        out = out.narrow(dim, 0, 0)
    return wrap(alias(out), p.placement)


def check_ordinary(
    func: Any, placement: Placement, dims: tuple[int, ...], channels: bool = True
) -> None:
    """Operators over image dimensions need them apart, and the channels whole."""
    joined = [d for d, _ in placement.joined if d in dims]
    if joined:
        refuse(
            func,
            "the image dimensions were flattened into one",
            "Reshape to (N, C, H, W) first",
        )
    channel = min(dims) - 1
    if channels and channel in placement.global_sizes:
        refuse_split_channels(func)


def refuse_split_channels(func: Any) -> NoReturn:
    refuse(
        func,
        "the channels are split over ranks",
        "Split batch or image dimensions only (dims=...)",
    )


def windows_for(
    placement: Placement,
    sizes: Sequence[int],
    outs: Sequence[int],
    make: Callable[[int, int, int], Window],
) -> Windows:
    """A window for each of the last `len(sizes)` dimensions that is an axis of the tile's layout.

    `make(dim, in_size, out_size)` describes those that are cut; the kernel itself handles all
    others, padding included, as it would in one process.
    """
    return tuple(
        (dim, make(dim, sizes[dim], outs[dim]))
        if dim in placement.cut_dims
        else (dim, WholeWindow(sizes[dim], outs[dim]))
        for dim in range(-len(sizes), 0)
        if dim in placement.dims
    )
