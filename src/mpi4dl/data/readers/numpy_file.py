"""`.npy` files, mapped to memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...geometry import Box
from ..reader import Array, Level, Tally
from .arrays import Axes
from .surroundings import blamed_on


class NumpyReader:
    """Channels may be the first or the last of three axes."""

    held = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        with blamed_on(self.name, "mapped to memory"):
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        self._axes = Axes.guessed(self._array.shape, self.name)
        self.channels = self._axes.channels_of(self._array.shape)
        self.dtype = self._array.dtype.newbyteorder("=")
        self.levels: tuple[Level, ...] = (Level(self._axes.size(self._array.shape)),)

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        part = np.ascontiguousarray(self._axes.region(self._array, box), self.dtype)
        if tally is not None:
            tally.add(part.nbytes, part.nbytes)
        return part

    def close(self) -> None:
        del self._array
