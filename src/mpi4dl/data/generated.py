"""Slides that are made up: stained tissue with nuclei, and their mask.

Every pixel follows from the seed and from where it is. So a slide of any size is written tile by
tile, and any region of it can be asked for without making the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..errors import DataError
from ..geometry import Box
from .picture import Size
from .reader import Array
from .readers.blocks import touched
from .readers.surroundings import library

_CELL = 36
"""Pixels; each square of this side has one nucleus or none."""

_CLOUD = 96
_STAIN = np.array([0.86, 0.66, 0.78], np.float32)[:, None, None]
_NUCLEUS = np.array([0.42, 0.28, 0.56], np.float32)[:, None, None]
_STEP = 4
"""From one level of a pyramid to the next."""


@dataclass(frozen=True)
class Tissue:
    """Red, green and blue of a slide, 0 … 255; `density` of all places have a nucleus."""

    size: Size
    seed: int = 0
    density: float = 0.6

    def read(self, box: Box) -> Array:
        rows, columns = (np.arange(i.start, i.stop) for i in box)
        image = _STAIN + np.float32(0.18) * np.stack(
            [self._cloud(rows, columns, channel) for channel in range(3)]
        )
        for depth, _, where in self._nuclei(box):
            part = image[(slice(None), *where)]
            part += (_NUCLEUS - part) * depth
        image += np.float32(0.09) * (self._random(rows, columns, 7) - np.float32(0.5))
        pixels: Array = (image.clip(0, 1) * 255).round().astype(np.uint8)
        return pixels

    def mask(self, box: Box) -> Array:
        """1 in nuclei, else 0: `(1, h, w)`."""
        found = np.zeros((1, *box.shape), np.uint8)
        for _, inside, where in self._nuclei(box):
            found[(0, *where)] |= inside
        return found

    def _nuclei(self, box: Box) -> Iterator[tuple[Array, Array, tuple[slice, slice]]]:
        """How dark, which pixels, and where in the box."""
        if box.empty:
            return
        cells = [np.arange((i.start - _CELL) // _CELL, i.stop // _CELL + 2) for i in box]
        draws = [self._random(cells[0], cells[1], kind) for kind in range(10, 17)]
        for place in np.argwhere(draws[0] < self.density):
            _, down, across, long, wide, turn, dark = (float(d[tuple(place)]) for d in draws)
            y, x = (
                (c[k] + u) * _CELL for c, k, u in zip(cells, place, (down, across), strict=True)
            )
            a, b, angle = 7 + 6 * long, 5 + 4 * wide, np.pi * turn
            where = tuple(
                slice(max(i.start, int(p - a)), min(i.stop, int(p + a) + 2))
                for i, p in zip(box, (y, x), strict=True)
            )
            if any(s.start >= s.stop for s in where):
                continue
            v, u = np.ogrid[where[0], where[1]]
            along = (u - x) * np.cos(angle) + (v - y) * np.sin(angle)
            aside = (v - y) * np.cos(angle) - (u - x) * np.sin(angle)
            distance = ((along / a) ** 2 + (aside / b) ** 2).astype(np.float32)
            inside = distance < 1
            depth = inside * (np.float32(0.55 + 0.4 * dark) - np.float32(0.25) * distance)
            rows, columns = (
                slice(s.start - i.start, s.stop - i.start) for s, i in zip(where, box, strict=True)
            )
            yield depth, inside, (rows, columns)

    def _cloud(self, rows: Array, columns: Array, kind: int) -> Array:
        """Smooth, in -0.5 … 0.5."""
        corners = [
            np.arange(p[0] // _CLOUD, p[-1] // _CLOUD + 2) if len(p) else p for p in (rows, columns)
        ]
        values = self._random(corners[0], corners[1], kind) - np.float32(0.5)
        for axis, (positions, corner) in enumerate(zip((rows, columns), corners, strict=True)):
            first = positions // _CLOUD - (corner[0] if len(corner) else 0)
            part = ((positions % _CLOUD) / np.float32(_CLOUD)).astype(np.float32)
            part = np.expand_dims(part * part * (3 - 2 * part), 1 - axis)
            values = values.take(first, axis) * (1 - part) + values.take(first + 1, axis) * part
        return values

    def _random(self, rows: Array, columns: Array, kind: int) -> Array:
        """In 0 … 1, for each row and column."""
        across = _hashed(
            rows.astype(np.uint32) + _hashed(np.array([(self.seed * 31 + kind) % 2**32], np.uint32))
        )
        return (_hashed(across[:, None] ^ columns.astype(np.uint32)) >> 8) * np.float32(2.0**-24)


def write_slide(
    image: str | Path,
    mask: str | Path | None,
    size: Size,
    seed: int = 0,
    *,
    density: float = 0.6,
    tile: int = 512,
    compression: str | None = "jpeg",
) -> None:
    """Write tissue as a pyramidal tiled TIFF, and the mask of its nuclei as another.

    Each level is a quarter as wide and high as the one before, down to a single tile. Little
    memory is needed, whatever the size; `compression` is one of tifffile's.
    """
    if tile % (16 * _STEP):
        raise DataError(f"tile is {tile}; it must be a multiple of {16 * _STEP}")
    tissue = Tissue(size, seed, density)
    _write(Path(image), tissue.read, size, 3, tile, _means, {"compression": compression})
    if mask is not None:
        _write(Path(mask), tissue.mask, size, 1, tile, _middles, {"compression": "zlib"})


Regions = Callable[[Box], Array]


def _write(
    path: Path,
    read: Regions,
    size: Size,
    channels: int,
    tile: int,
    smaller: Callable[[Array], Array],
    options: dict[str, Any],
) -> None:
    tifffile = library("tifffile", "data", "TIFF files are written")
    photometric = "rgb" if channels == 3 else "minisblack"
    options |= {"tile": (tile, tile), "photometric": photometric, "dtype": "uint8"}
    with (
        TemporaryDirectory(dir=path.parent) as folder,
        tifffile.TiffWriter(path, bigtiff=size[0] * size[1] * channels > 2**31) as file,
    ):
        for level in range(16):
            reduced = (-(-size[0] // _STEP), -(-size[1] // _STEP))
            last = max(size) <= tile
            below = None
            if not last:
                scratch = Path(folder) / f"{level}.raw"
                below = np.memmap(scratch, np.uint8, "w+", shape=(channels, *reduced))
            shape = (*size, channels) if channels > 1 else size
            tiles = _tiles(read, size, tile, smaller, below)
            file.write(tiles, shape=shape, subfiletype=int(level > 0), metadata=None, **options)
            if below is None:
                return
            read, size = partial(_part, below), reduced


def _part(array: Array, box: Box) -> Array:
    return np.asarray(array[:, box[0].start : box[0].stop, box[1].start : box[1].stop])


def _tiles(
    read: Regions, size: Size, tile: int, smaller: Callable[[Array], Array], below: Array | None
) -> Iterator[Array]:
    """Whole tiles, and on the way the next level into `below`."""
    whole = Box.full(size)
    for _, box in touched(whole, (tile, tile)):
        inside = box.intersect(whole)
        pixels = read(inside)
        if below is not None:
            rows, columns = (slice(i.start // _STEP, -(-i.stop // _STEP)) for i in inside)
            below[:, rows, columns] = smaller(pixels)
        short = [(0, n - m) for n, m in zip((tile, tile), inside.shape, strict=True)]
        full = np.pad(pixels, [(0, 0), *short], mode="edge").transpose(1, 2, 0)
        yield np.ascontiguousarray(full if full.shape[2] > 1 else full[..., 0])


def _means(pixels: Array) -> Array:
    short = [(0, -n % _STEP) for n in pixels.shape[1:]]
    full = np.pad(pixels, [(0, 0), *short], mode="edge")
    channels, rows, columns = full.shape
    blocks = full.reshape(channels, rows // _STEP, _STEP, columns // _STEP, _STEP)
    means: Array = blocks.mean((2, 4), dtype=np.float32).round().astype(np.uint8)
    return means


def _middles(pixels: Array) -> Array:
    rows, columns = (
        np.minimum(np.arange(0, n, _STEP) + _STEP // 2, n - 1) for n in pixels.shape[1:]
    )
    return pixels[:, rows[:, None], columns]


def _hashed(bits: Array) -> Array:
    """Within 32 bits."""
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))
