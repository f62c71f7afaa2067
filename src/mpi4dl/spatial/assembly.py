"""The shared mechanism of operators whose output is put together from pieces of their inputs.

Along one dimension the output is a row of segments. Each is a stretch of one source, read
forwards, read backwards, or a single cell repeated:

    reflect padding by 2:   c b │ a b c d e │ d c        segments −1, +1, −1
    roll by 2:              d e │ a b c                  segments +1, +1
    cat of two:             a b c │ x y                  segments +1, +1

Of every segment each rank fetches what its own output reads, by one transfer. All ranks make the
same transfers in the same order, also those whose output has no part in a segment; a transfer
in which every rank already holds what it wants sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..comm.exchange import transfer
from ..geometry import Box, Interval, Layout, Transfer
from ..geometry.window import ceil_div
from .placement import Placement
from .registry import refuse
from .tile import Tile, alias, check_same_ranks, wrap


@dataclass(frozen=True, slots=True)
class Rescale:
    """Where a cut goes: `c` to ⌈(c + offset)·up / down⌉. A value, so that plans can be cached."""

    offset: int = 0
    up: int = 1
    down: int = 1

    def __call__(self, c: int) -> int:
        return ceil_div((c + self.offset) * self.up, self.down)


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` cells of the output: cell k is cell `start + k·step` of a source."""

    length: int
    start: int
    step: int = 1  # 1 forwards, −1 backwards, 0 one cell again and again
    source: int = 0

    def reads(self, part: Interval) -> Interval:
        """The input interval that the cells `part` of this segment need."""
        if part.empty:
            return Interval(self.start, self.start)
        ends = (self.start + part.start * self.step, self.start + (part.stop - 1) * self.step)
        return Interval(min(ends), max(ends) + 1)


def segments_of(*segments: Segment) -> tuple[Segment, ...]:
    """The segments that are not empty, which the same numbers decide on every rank."""
    return tuple(s for s in segments if s.length)


def resized(placement: Placement, dim: int, size: int, cut: Rescale | None = None) -> Placement:
    """The placement after dimension `dim` became `size` long; its cuts move by `cut`."""
    axis = placement.axis_of(dim)
    return placement if axis is None else _resized(placement, axis, size, cut or Rescale())


@lru_cache(maxsize=16384)
def _resized(placement: Placement, axis: int, size: int, cut: Rescale) -> Placement:
    layout = placement.layout
    if axis in layout.cut_axes:
        return placement.with_layout(layout.remap(axis, size, cut))
    whole = Interval(0, size)
    sizes = (*layout.size[:axis], size, *layout.size[axis + 1 :])
    boxes = (Box((*b.intervals[:axis], whole, *b.intervals[axis + 1 :])) for b in layout.boxes)
    return placement.with_layout(Layout(sizes, tuple(boxes)))


def check_apart(func: Any, tile: Tile, dim: int) -> None:
    """Pieces are taken along dimensions that are themselves, not several flattened into one."""
    if any(d == dim for d, _ in tile.placement.joined):
        refuse(
            func,
            f"dimension {dim} was flattened from image dimensions that are split over ranks",
            "Do this before flattening, or reshape to (N, C, H, W) first",
        )


@dataclass(frozen=True)
class Piece:
    """This rank's part of a segment: where it comes from and what is done with it."""

    source: int
    step: int
    length: int
    box: tuple[tuple[int, Interval], ...]  # what is wanted of the source: (dimension, interval)
    moves: Transfer | None  # None: the source is whole on every rank
    dims: tuple[int, ...]


@lru_cache(maxsize=16384)
def _pieces(
    sources: tuple[Placement | None, ...],
    extents: tuple[int, ...],
    dim: int,
    segments: tuple[Segment, ...],
    out: Placement,
) -> tuple[Piece, ...]:
    pieces, done = [], 0
    mine = out.box[out.dims.index(dim)]
    for segment in segments:
        where = Interval(done, done + segment.length)
        source = sources[segment.source]
        moves, dims = None, out.dims
        if source is not None:
            source = _with_all_axes(source, out, dim, extents[segment.source])
            targets = (_wanted(box, out, source, dim, segment, where) for box in out.layout.boxes)
            moves, dims = Transfer(source.layout, tuple(targets)), source.dims
        wanted = _wanted(out.box, out, source or out, dim, segment, where)
        pieces.append(
            Piece(
                source=segment.source,
                step=segment.step,
                length=mine.intersect(where).size,
                box=tuple(zip(dims, wanted, strict=True)),
                moves=moves,
                dims=dims,
            )
        )
        done = where.stop
    return tuple(pieces)


def _with_all_axes(source: Placement, out: Placement, dim: int, extent: int) -> Placement:
    for axis, d in enumerate(out.dims):
        if d not in source.dims:
            source = source.with_dim(d, extent if d == dim else out.layout.size[axis])
    return source


def _wanted(
    box: Box, out: Placement, source: Placement, dim: int, segment: Segment, where: Interval
) -> Box:
    """What the rank of the output `box` wants of a source: all of dimensions that `out` lacks."""

    def along(axis: int, d: int) -> Interval:
        if d == dim:
            part = box[out.dims.index(d)].intersect(where)
            return segment.reads(part.shift(-where.start))
        if d in out.dims:
            return box[out.dims.index(d)]
        return Interval(0, source.layout.size[axis])

    return Box(tuple(along(axis, d) for axis, d in enumerate(source.dims)))


def assemble(
    sources: Sequence[Tensor], dim: int, segments: tuple[Segment, ...], out: Placement
) -> Tile:
    """The tile of placement `out` that is `segments` one after the other along `dim`.

    A source may be a tile of any placement without joined dimensions, or a plain tensor that
    every rank holds whole. Segments together are as long as the output is, and at least one.
    """
    for source in sources:
        if isinstance(source, Tile):
            check_same_ranks(source.placement.comm, out.comm)
    placements = tuple(s.placement if isinstance(s, Tile) else None for s in sources)
    extents = tuple(s.shape[dim] for s in sources)
    made = [
        _made(sources[piece.source], piece, dim, out)
        for piece in _pieces(placements, extents, dim, segments, out)
    ]
    return wrap(alias(made[0]) if len(made) == 1 else torch.cat(made, dim), out)


def _made(source: Tensor, piece: Piece, dim: int, out: Placement) -> Tensor:
    if piece.moves is None:
        local = alias(source)
        for d, part in piece.box:
            local = local.narrow(d, part.start, part.size)
    else:
        local = transfer(alias(source), piece.moves, piece.dims, out.comm)
    if piece.step < 0:
        return local.flip(dim)
    if piece.step == 0:
        sizes = [-1] * local.ndim
        sizes[dim] = piece.length
        return local.expand(sizes)
    return local
