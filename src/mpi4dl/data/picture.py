"""`Picture`: an image that is known by its regions, and pictures made of pictures.

Each says which region of the picture below it needs for one of its own: boxes all the way down to
the file. What comes out of a tile is, bit for bit, that part of what comes out of the whole.

    Coloured( Turned( Placed( AtLevel( reader ))))   .read(box)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..geometry import Box, Interval
from .reader import Array, RegionReader, Tally

Size = tuple[int, int]


class Picture(Protocol):
    @property
    def size(self) -> Size:
        """Rows and columns."""
        ...

    def read(self, box: Box) -> Array:
        """A region that lies inside: `(channels, h, w)`."""
        ...


@dataclass(frozen=True)
class AtLevel:
    """One level of a file."""

    reader: RegionReader
    level: int = 0
    tally: Tally | None = None

    @property
    def size(self) -> Size:
        return self.reader.levels[self.level].size

    def read(self, box: Box) -> Array:
        return self.reader.read(box, self.level, self.tally)


@dataclass(frozen=True)
class Placed:
    """A frame of another size, whose first pixel is `top`, `left` of the picture, which may lie
    outside of it: that is how images are cropped and padded."""

    below: Picture
    size: Size
    top: int
    left: int
    fill: float = 0

    def read(self, box: Box) -> Array:
        wanted = Box((box[0].shift(self.top), box[1].shift(self.left)))
        inside = wanted.intersect(Box.full(self.below.size))
        if inside == wanted:
            return self.below.read(wanted)
        there = self.below.read(inside)
        filled = np.full((len(there), *box.shape), self.fill, there.dtype)
        if not inside.empty:
            filled[(slice(None), *inside.slices_in(wanted))] = there
        return filled


@dataclass(frozen=True)
class Turned:
    """Turned left by `quarters` × 90°, then mirrored left to right if so said."""

    below: Picture
    quarters: int = 0
    mirrored: bool = False

    @property
    def size(self) -> Size:
        rows, columns = self.below.size
        return (columns, rows) if self.quarters % 2 else (rows, columns)

    def read(self, box: Box) -> Array:
        rows, columns = box
        if self.mirrored:
            columns = _flipped(columns, self.size[1])
        size = self.size
        for _ in range(self.quarters % 4):  # back by one quarter each time
            rows, columns = columns, _flipped(rows, size[0])
            size = (size[1], size[0])
        part = np.rot90(self.below.read(Box((rows, columns))), self.quarters, (1, 2))
        return part[:, :, ::-1] if self.mirrored else part


def _flipped(interval: Interval, n: int) -> Interval:
    return Interval(n - interval.stop, n - interval.start)
