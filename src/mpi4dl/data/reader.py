"""`RegionReader`: a file of pixels, of which any region can be read; and what reading cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..geometry import Box

Array = NDArray[Any]


@dataclass(frozen=True)
class Level:
    """One resolution of an image. Level 0 is the finest."""

    size: tuple[int, int]
    """Rows and columns."""

    downsample: float = 1.0
    """Pixels of level 0 for one of these, along each side."""


@dataclass
class Tally:
    """What reading cost so far; many threads may add to it."""

    bytes_read: int = 0
    """From files, as they are stored."""

    bytes_decoded: int = 0
    """Pixels in the file's own data type; whole blocks, where it is stored in blocks."""

    bytes_used: int = 0
    """Of these, what samples that were handed out have."""

    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, stored: int, decoded: int) -> None:
        with self._lock:
            self.bytes_read += stored
            self.bytes_decoded += decoded

    def use(self, count: int) -> None:
        with self._lock:
            self.bytes_used += count


class RegionReader(Protocol):
    """An open image. Several threads may read at once.

    A file that is damaged is a `DamagedFile`, whose message begins with its name.
    """

    name: str
    """For messages: the path, usually."""

    channels: int
    dtype: np.dtype[Any]
    levels: tuple[Level, ...]

    @property
    def held(self) -> int:
        """Bytes of pixels that it keeps in memory."""
        ...

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        """The rows and columns of `box`, which lies inside the level: `(channels, h, w)`.

        What that cost is added to the tally.
        """
        ...

    def close(self) -> None: ...


def nearest_level(reader: RegionReader, downsample: float) -> int:
    """The coarsest level that is at least as fine as asked for."""
    fine = [n for n, level in enumerate(reader.levels) if level.downsample <= downsample * 1.01]
    return max(fine, key=lambda n: reader.levels[n].downsample, default=0)


def check_level(reader: RegionReader, level: int) -> None:
    if not 0 <= level < len(reader.levels):
        sizes = ", ".join(f"{n}: {s.size[0]}×{s.size[1]}" for n, s in enumerate(reader.levels))
        raise DataError(f"{reader.name} has no level {level}; its levels are {sizes}")
