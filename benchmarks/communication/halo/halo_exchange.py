"""The halo of a tile, and what passes between ranks for it.

    ┌────────────────────────┐
    │         above          │
    ├──────┬──────────┬──────┤
    │ left │   tile   │ right│
    ├──────┴──────────┴──────┤
    │         below          │
    └────────────────────────┘

Four strips, cut off where the image ends; those above and below have the corners. They are what a
convolution on tiles fetches: in one exchange, with one message from each neighbour, and without a
copy of the tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mpi4dl import Box, Interval, Layout
from mpi4dl.comm.communicator import Communicator, Message, Pending, ReduceOp
from mpi4dl.comm.exchange import empty_region, rank_plan
from mpi4dl.geometry import Transfer

DIMS = (-2, -1)


def strips(box: Box, size: Sequence[int], halo: int) -> tuple[Box, Box, Box, Box]:
    """What lies above, below, left and right of a tile, as far as the halo and the image reach."""
    rows, columns = box
    image = Box.full(size)
    wide = Interval(columns.start - halo, columns.stop + halo)
    around = (
        Box((Interval(rows.start - halo, rows.start), wide)),
        Box((Interval(rows.stop, rows.stop + halo), wide)),
        Box((rows, Interval(columns.start - halo, columns.start))),
        Box((rows, Interval(columns.stop, columns.stop + halo))),
    )
    above, below, left, right = (strip.intersect(image) for strip in around)
    return above, below, left, right


class Exchange:
    """The halo exchange of one rank, forward and its adjoint."""

    def __init__(self, layout: Layout, halo: int, comm: Communicator) -> None:
        sides = zip(*(strips(box, layout.size, halo) for box in layout.boxes), strict=True)
        moves = [Transfer(layout, targets) for targets in sides]
        self.boxes = [side.targets[comm.rank] for side in moves]
        self._plans = [rank_plan(side, comm.rank, DIMS, 4) for side in moves]
        self._comm = comm

    def fetch(self, tile: Tensor) -> list[Tensor]:
        """The strips around a tile of shape (N, C, rows, columns)."""
        around = [empty_region(tile, DIMS, plan.wanted) for plan in self._plans]
        leaving = [(peer, tile[where]) for plan in self._plans for peer, where in plan.sends]
        places = [
            (peer, strip[where])
            for strip, plan in zip(around, self._plans, strict=True)
            for peer, where in plan.receives
        ]
        for place, arrived in self._passed(leaving, places):
            place.copy_(arrived)
        return around

    def give_back(self, around: Sequence[Tensor], gradient: Tensor) -> None:
        """Send the gradients of the strips home; add to the tile's what comes from others."""
        leaving = [
            (peer, strip[where])
            for strip, plan in zip(around, self._plans, strict=True)
            for peer, where in plan.receives
        ]
        places = [(peer, gradient[where]) for plan in self._plans for peer, where in plan.sends]
        for place, arrived in self._passed(leaving, places):
            place.add_(arrived)

    def _passed(
        self, leaving: Sequence[Message], places: Sequence[Message]
    ) -> list[tuple[Tensor, Tensor]]:
        arriving = [
            (peer, torch.empty_like(place, memory_format=torch.contiguous_format))
            for peer, place in places
        ]
        self._comm.start(leaving, arriving).wait()
        return [(place, buffer) for (_, place), (_, buffer) in zip(places, arriving, strict=True)]


class Through:
    """A communicator that hands everything to another."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        return self.comm.subgroup(ranks, use)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        return self.comm.start(sends, receives)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self.comm.all_reduce(tensor, op)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        return self.comm.start_all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self.comm.all_gather(tensor)


class Counted(Through):
    """Counts what arrives at this rank."""

    messages = received = reduced = 0

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        self.messages += len(receives)
        self.received += sum(t.numel() * t.element_size() for _, t in receives)
        return super().start(sends, receives)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self.reduced += tensor.numel() * tensor.element_size()
        super().all_reduce(tensor, op)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        self.reduced += tensor.numel() * tensor.element_size()
        return super().start_all_reduce(tensor)

    def counts(self) -> list[int]:
        return [self.messages, self.received, self.reduced]


class _Widening:
    """Values that travel as float16, to be put where they belong."""

    def __init__(self, pending: Pending, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._pending, self._pairs = pending, pairs

    def wait(self) -> None:
        self._pending.wait()
        for place, arrived in self._pairs:
            place.copy_(arrived)


class Float16(Through):
    """Floating point values travel as float16."""

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        halves = [(peer, _half(t, torch.empty_like(t, dtype=torch.half))) for peer, t in receives]
        leaving = [(peer, _half(t, t.half())) for peer, t in sends]
        pairs = [(t, h) for (_, t), (_, h) in zip(receives, halves, strict=True) if t is not h]
        return _Widening(self.comm.start(leaving, halves), pairs)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        half = _half(tensor, tensor.half())
        self.comm.all_reduce(half, op)
        tensor.copy_(half)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        half = _half(tensor, tensor.half())
        return _Widening(self.comm.start_all_reduce(half), [(tensor, half)])


def _half(tensor: Tensor, half: Tensor) -> Tensor:
    return half if tensor.is_floating_point() else tensor
