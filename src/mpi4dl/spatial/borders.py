"""Which outputs of a window read beyond their own tile, and what they read there.

┌──────────────────────┐   Most outputs read the own tile alone. Those along the borders to
│         side         │   other tiles form up to two sides for each dimension, disjoint:
├──────┬────────┬──────┤
│      │        │      │   rows first, over the whole width; then columns, between the rows.
│ side │ inside │ side │
│      │        │      │   A side is computed from a small region of its own, put together
├──────┴────────┴──────┤   from the tile and from what other ranks send.
│         side         │
└──────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..comm.exchange import Index
from ..geometry import Box, Interval, Layout, SlidingWindow, Transfer
from .placement import Placement
from .regions import Windows, plan

Sizes = tuple[int, ...]
Sliding = tuple[tuple[int, SlidingWindow], ...]  # (negative tensor dimension, window)
LocalSize = Callable[[int, SlidingWindow], int]


@dataclass(frozen=True)
class Piece:
    """Part of a side's region: from the own tile (`message` −1) or from a message."""

    message: int
    there: Index
    here: Index


@dataclass(frozen=True)
class Side:
    outputs: Index  # in this rank's output
    cells: tuple[tuple[int, Interval], ...]  # the same in the whole output: (dimension, interval)
    extent: tuple[tuple[int, int], ...]  # of the region: (dimension, size)
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Borders:
    sends: tuple[tuple[int, Index], ...]  # (peer, part of the own tile)
    receives: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  # (peer, (dimension, size) …)
    sides: tuple[Side, ...]


@lru_cache(maxsize=4096)
def fits_tiles(placement: Placement, windows: Windows, made_of: LocalSize) -> bool:
    """Whether every rank's outputs are as many as its own tile, padded like the image, would make.

    `made_of(cells, window)` is how many those are. The same answer on every rank.
    """
    out = plan(placement, windows).placement.layout
    for before, after in zip(placement.layout.boxes, out.boxes, strict=True):
        if before.empty or after.empty:
            return False
        for dim, window in windows:
            if not isinstance(window, SlidingWindow):
                continue
            axis = placement.dims.index(dim)
            mine, made = before[axis], after[axis]
            if mine.size <= window.reach:  # a window with nothing but padding in it, perhaps
                return False
            if mine.start != made.start * window.stride or made_of(mine.size, window) != made.size:
                return False
    return True


@lru_cache(maxsize=4096)
def borders(placement: Placement, windows: Sliding, ndim: int) -> Borders:
    """This rank's sides. `windows` are those of all dimensions that are pooled, cut or not."""
    for dim, window in windows:
        if dim not in placement.dims:
            placement = placement.with_dim(dim, window.in_size)
    layout, rank, dims = placement.layout, placement.comm.rank, placement.dims
    by_axis = {dims.index(dim): window for dim, window in windows}
    out = layout
    for axis, window in by_axis.items():
        out = _remapped(out, axis, window)
    whole = Box.full(layout.size)
    wanted = tuple(_reads(box, by_axis).intersect(whole) for box in out.boxes)
    moves = Transfer(layout, wanted)
    own, made = layout.boxes[rank], out.boxes[rank]
    arriving = [m for m in moves.incoming(rank) if m.source != rank]

    def index(box: Box, outer: Box) -> Index:
        full = [slice(None)] * ndim
        for dim, part in zip(dims, box.slices_in(outer), strict=True):
            full[dim] = part
        return tuple(full)

    def side(cells: Box) -> Side:
        region = _reads(cells, by_axis)
        sources = [(-1, own), *((i, m.box) for i, m in enumerate(arriving))]
        pieces = [
            Piece(message, index(common, box), index(common, region))
            for message, box in sources
            if not (common := box.intersect(region)).empty
        ]
        return Side(
            outputs=index(cells, made),
            cells=tuple(zip(dims, cells, strict=True)),
            extent=tuple(zip(dims, region.shape, strict=True)),
            pieces=tuple(pieces),
        )

    return Borders(
        sends=tuple(
            (m.target, index(m.box, own)) for m in moves.outgoing(rank) if m.target != rank
        ),
        receives=tuple((m.source, tuple(zip(dims, m.box.shape, strict=True))) for m in arriving),
        sides=tuple(side(cells) for cells in _sides(own, made, by_axis)),
    )


def _remapped(layout: Layout, axis: int, window: SlidingWindow) -> Layout:
    if axis in layout.cut_axes:
        return layout.remap(axis, window.out_size, window.cut)
    whole = Interval(0, window.out_size)
    sizes = (*layout.size[:axis], window.out_size, *layout.size[axis + 1 :])
    boxes = (Box((*b.intervals[:axis], whole, *b.intervals[axis + 1 :])) for b in layout.boxes)
    return Layout(sizes, tuple(boxes))


def _reads(out: Box, windows: dict[int, SlidingWindow]) -> Box:
    return Box(
        tuple(
            windows[axis].reads(part) if axis in windows else part for axis, part in enumerate(out)
        )
    )


def _sides(own: Box, made: Box, windows: dict[int, SlidingWindow]) -> list[Box]:
    """The outputs that read beyond the own tile, inside the image, as disjoint boxes."""
    rest, found = list(made), []
    for axis, window in windows.items():
        mine, cells = own[axis], made[axis]
        low, high = cells.start, cells.stop
        if mine.start > 0:  # else what lies before is the image's border
            low = min(max(-(-(mine.start + window.padding) // window.stride), low), high)
        if mine.stop < window.in_size:
            first = (mine.stop + window.padding - window.reach - 1) // window.stride + 1
            high = max(min(first, high), low)
        for part in (Interval(cells.start, low), Interval(high, cells.stop)):
            found.append(Box((*rest[:axis], part, *rest[axis + 1 :])))
        rest[axis] = Interval(low, high)
    return [box for box in found if not box.empty]
