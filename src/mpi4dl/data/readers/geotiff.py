"""GeoTIFF, JPEG 2000, VRT and whatever else GDAL reads, through rasterio."""

from __future__ import annotations

from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ...geometry import Box
from ..reader import Array, Level, Tally
from . import kernel
from .blocks import pixels_touched
from .surroundings import blamed_on, library


class GeoReader:
    """All bands as channels; overviews as levels. Values are those of the file: nothing is scaled,
    and pixels without data have the file's own number for them."""

    held = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._rasterio = library("rasterio", "geo", "georeferenced images are read")
        with blamed_on(self.name, "read by GDAL"), self._rasterio.open(path) as opened:
            factors = [1, *opened.overviews(1)]
            self.channels = opened.count
            self.dtype = np.dtype(opened.dtypes[0])
        self._free: list[SimpleQueue[Any]] = [SimpleQueue() for _ in factors]
        with blamed_on(self.name, "read by GDAL"):
            levels = [self._opened(level) for level in range(len(factors))]
        rows = levels[0].shape[0]
        self.levels: tuple[Level, ...] = tuple(
            Level(opened.shape, rows / opened.shape[0]) for opened in levels
        )
        self._blocks = [opened.block_shapes[0] for opened in levels]
        for free, opened in zip(self._free, levels, strict=True):
            free.put(opened)

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        if box.empty:
            return np.zeros((self.channels, *box.shape), self.dtype)
        window = self._rasterio.windows.Window(box[1].start, box[0].start, *box.shape[::-1])
        # GDAL's data sets are for one thread at a time: each reads with one that is free.
        try:
            opened = self._free[level].get_nowait()
        except Empty:
            opened = self._opened(level)
        with blamed_on(self.name, "read by GDAL"), kernel.bytes_read() as stored:
            part: Array = opened.read(window=window)
        self._free[level].put(opened)
        if tally is not None:
            decoded = pixels_touched(box, self._blocks[level], self.levels[level].size)
            tally.add(stored(), decoded * self.channels * self.dtype.itemsize)
        return part

    def close(self) -> None:
        for free in self._free:
            while not free.empty():
                free.get().close()

    def _opened(self, level: int) -> Any:
        which = {"overview_level": level - 1} if level else {}
        return self._rasterio.open(self._path, **which)
