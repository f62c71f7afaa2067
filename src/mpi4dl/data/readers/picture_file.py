"""PNG, JPEG and what else Pillow reads: decoded whole, once."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import numpy as np

from ...geometry import Box
from ..reader import Array, Level, Tally
from .surroundings import blamed_on, library

_STORED = {
    "L": (1, "u1"),
    "LA": (2, "u1"),
    "RGB": (3, "u1"),
    "RGBA": (4, "u1"),
    "P": (1, "u1"),
    "I;16": (1, "u2"),
    "I": (1, "i4"),
    "F": (1, "f4"),
}
"""Channels and data type of Pillow's modes, as far as they are images as they stand."""


class PictureReader:
    """`indices`: of pictures with a palette, the numbers that are stored; of black and white, 0
    and 1."""

    def __init__(self, path: Path, indices: bool = False) -> None:
        self.name = str(path)
        self._path, self._indices = path, indices
        self._lock = Lock()
        self._pixels: Array | None = None
        library("PIL", "data", "pictures are read")
        from PIL import Image

        with blamed_on(self.name, "read as a picture"), Image.open(path) as picture:
            columns, rows = picture.size
            self._mode, self._mask = self._meant(picture.mode), picture.mode == "1" and indices
        self.levels: tuple[Level, ...] = (Level((rows, columns)),)
        self.channels, stored = _STORED[self._mode]
        self.dtype = np.dtype(stored)

    @property
    def held(self) -> int:
        return 0 if self._pixels is None else self._pixels.nbytes

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        with self._lock:
            pixels = self._pixels
            if pixels is None:
                pixels = self._pixels = self._decoded()
                if tally is not None:
                    tally.add(self._path.stat().st_size, pixels.nbytes)
        return pixels[(slice(None), *box.slices_in(Box.full(self.levels[0].size)))]

    def close(self) -> None:
        self._pixels = None

    def _meant(self, mode: str) -> str:
        if mode == "1":
            return "L"
        if mode == "P":
            return "P" if self._indices else "RGB"
        return mode if mode in _STORED else "RGB"

    def _decoded(self) -> Array:
        from PIL import Image

        with blamed_on(self.name, "read as a picture"), Image.open(self._path) as picture:
            if picture.mode != self._mode:
                pixels = np.asarray(picture.convert(self._mode))
            else:
                pixels = np.asarray(picture)
        if self._mask:
            pixels = pixels // 255
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
