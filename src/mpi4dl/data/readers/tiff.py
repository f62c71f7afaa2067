"""Tiled and pyramidal TIFF, OME-TIFF: tifffile finds the tiles and unpacks them, and only those are
read that a region touches."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DamagedFile, DataError
from ...geometry import Box
from ..reader import Array, Level, Tally
from .arrays import Axes
from .blocks import touched
from .surroundings import blamed_on, library
from .tiff_colours import meaning


class TiffReader:
    """The first series of images in the file, with its pyramid.

    `indices`: of images with a palette, the numbers that are stored.
    """

    held = 0

    def __init__(self, path: Path, indices: bool = False) -> None:
        self.name = str(path)
        tifffile = library("tifffile", "data", "TIFF files are read")
        with blamed_on(self.name, "read as TIFF"), tifffile.TiffFile(path) as file:
            if not file.series:
                raise DataError(f"{self.name} has no images in it")
            series = file.series[0]
            self._meaning = meaning(series.keyframe, indices, self.name)
            self._levels = [_level(level, file, self.name) for level in series.levels]
        finest = self._levels[0]
        example = self._meaning(np.zeros((finest.channels, 1, 1), finest.dtype))
        self.channels, self.dtype = len(example), example.dtype
        self.levels = tuple(
            Level(level.size, finest.size[0] / level.size[0]) for level in self._levels
        )
        self._file = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self._file)
        self._check_complete()

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        source = _Source(self._file, self.name, tally or Tally())
        return self._meaning(self._levels[level].read(box, source))

    def _check_complete(self) -> None:
        size = os.fstat(self._file).st_size
        for level in self._levels:
            if level.end > size:
                raise DamagedFile(
                    f"{self.name} is cut off: its pixels end at byte {level.end}, and the file "
                    f"has {size} bytes"
                )


@dataclass(frozen=True)
class _Source:
    file: int
    name: str
    tally: Tally


def _level(series: Any, file: Any, name: str) -> _Mapped | _Blocks:
    axes = Axes.named(series.axes, series.shape, name)
    if series.dataoffset is not None:
        dtype = series.dtype.newbyteorder(file.byteorder)
        return _Mapped(axes, tuple(series.shape), dtype, series.dataoffset)
    pages = list(series.pages)
    if any(page is None or page.parent is not file for page in pages):
        raise DataError(f"{name} has planes that are missing or in other files; join them first")
    if series.keyframe.imagedepth > 1:
        raise DataError(f"{name} has planes that are stored as a volume, which is not read")
    return _Blocks(
        axes.size(series.shape),
        axes.channels_of(series.shape),
        tuple(_Plane.of(page) for page in pages),
    )


@dataclass(frozen=True)
class _Mapped:
    """Pixels one after the other, neither packed nor tiled."""

    axes: Axes
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    offset: int

    @property
    def size(self) -> tuple[int, int]:
        return self.axes.size(self.shape)

    @property
    def channels(self) -> int:
        return self.axes.channels_of(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.newbyteorder("=")

    @property
    def end(self) -> int:
        return self.offset + int(np.prod(self.shape)) * self.stored.itemsize

    def read(self, box: Box, source: _Source) -> Array:
        with os.fdopen(os.dup(source.file), "rb") as opened:
            array = np.memmap(opened, self.stored, "r", self.offset, self.shape)
        part = np.ascontiguousarray(self.axes.region(array, box), self.dtype)
        source.tally.add(part.nbytes, part.nbytes)
        return part


@dataclass(frozen=True, eq=False)
class _Plane:
    """A page of the file. Its blocks are tiles, or strips as wide as the image."""

    decode: Any
    tables: bytes | None
    offsets: Array
    counts: Array
    block: tuple[int, int]
    grid: tuple[int, int]
    channels: int
    separate: bool
    """Each channel has blocks of its own."""

    dtype: np.dtype[Any]
    nodata: float

    @classmethod
    def of(cls, page: Any) -> _Plane:
        first = page.keyframe
        rows, columns = first.imagelength, first.imagewidth
        block = (min(first.rowsperstrip, rows), columns)
        if first.is_tiled:
            block = (first.tilelength, first.tilewidth)
        return cls(
            decode=first.decode,
            tables=page.jpegtables if page is first else first.jpegtables,
            offsets=np.array(page.dataoffsets, np.int64),
            counts=np.array(page.databytecounts, np.int64),
            block=block,
            grid=(-(-rows // block[0]), -(-columns // block[1])),
            channels=first.samplesperpixel,
            separate=first.planarconfig == 2 and first.samplesperpixel > 1,
            dtype=first.dtype,
            nodata=first.nodata,
        )

    @property
    def channels_of_block(self) -> int:
        return 1 if self.separate else self.channels

    def blocks(self, box: Box) -> list[_Block]:
        """Those that the box touches."""
        area = self.grid[0] * self.grid[1]
        parts = range(self.channels) if self.separate else range(1)
        return [
            _Block(part * area + row * self.grid[1] + column, part, pixels)
            for part in parts
            for (row, column), pixels in touched(box, self.block)
        ]

    def unpack(self, block: _Block, inside: Box, there: Array, source: _Source) -> None:
        stored = int(self.counts[block.number])
        if stored == 0:
            there[:] = self.nodata
            return
        data = os.pread(source.file, stored, int(self.offsets[block.number]))
        with blamed_on(f"{source.name}: block {block.number}", "unpacked"):
            tables = {"jpegtables": self.tables} if self.tables is not None else {}
            segment, _, _ = self.decode(data, block.number, **tables)
            pixels = segment[0]
            there[:] = pixels[inside.slices_in(block.pixels)].transpose(2, 0, 1)
        source.tally.add(stored, pixels.nbytes)


@dataclass(frozen=True)
class _Block:
    number: int
    channel: int
    """The first of those that it has."""

    pixels: Box


@dataclass(frozen=True, eq=False)
class _Blocks:
    size: tuple[int, int]
    channels: int
    planes: tuple[_Plane, ...]
    """Each has some of the channels."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.planes[0].dtype

    @property
    def end(self) -> int:
        return max(int((plane.offsets + plane.counts).max(initial=0)) for plane in self.planes)

    def read(self, box: Box, source: _Source) -> Array:
        out = np.empty((self.channels, *box.shape), self.dtype)
        first = 0
        for plane in self.planes:
            for block in plane.blocks(box):
                inside = block.pixels.intersect(box).intersect(Box.full(self.size))
                channel = first + block.channel
                channels = slice(channel, channel + plane.channels_of_block)
                there = out[(channels, *inside.slices_in(box))]
                plane.unpack(block, inside, there, source)
            first += plane.channels
        return out
