"""The halo of a tile, fetched and given back.

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

from ...comm.communicator import Communicator, Message
from ...comm.exchange import empty_region, rank_plan
from ...geometry import Box, Interval, Layout, Transfer

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
