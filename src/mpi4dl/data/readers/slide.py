"""Whole-slide formats, through OpenSlide: svs, ndpi, mrxs, scn, bif and others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...geometry import Box
from ..reader import Array, Level, Tally
from . import kernel
from .blocks import pixels_touched, touched
from .surroundings import blamed_on, library

_BLOCK = (512, 512)


class SlideReader:
    """RGB; where nothing was scanned, the background colour of the slide."""

    held = 0
    channels = 3
    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        openslide = library("openslide", "slides", "slides are read")
        with blamed_on(self.name, "read as a slide"):
            self._slide: Any = openslide.OpenSlide(path)
        of, properties = self._slide, self._slide.properties
        self.levels = tuple(
            Level((rows, columns), float(factor))
            for (columns, rows), factor in zip(
                of.level_dimensions, of.level_downsamples, strict=True
            )
        )
        self._blocks = [_tile(properties, n) for n in range(of.level_count)]
        background = properties.get("openslide.background-color", "ffffff")
        self._background = np.array(list(bytes.fromhex(background)), np.float32)

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        size, factor = self.levels[level].size, self.levels[level].downsample
        out = np.empty((3, *box.shape), np.uint8)
        with blamed_on(self.name, "read"), kernel.bytes_read() as stored:
            for part in _parts(box, size, whole=factor.is_integer()):
                region = self._slide.read_region(
                    (round(part[1].start * factor), round(part[0].start * factor)),
                    level,
                    part.shape[::-1],
                )
                wanted = part.intersect(box)
                pixels = self._on_background(np.asarray(region)).transpose(2, 0, 1)
                there = (slice(None), *wanted.slices_in(box))
                out[there] = pixels[(slice(None), *wanted.slices_in(part))]
        if tally is not None:
            tally.add(stored(), 3 * pixels_touched(box, self._blocks[level], size))
        return out

    def close(self) -> None:
        self._slide.close()

    def _on_background(self, pixels: Array) -> Array:
        if (pixels[..., 3] == 255).all():
            return pixels[..., :3]
        opaque = pixels[..., 3:].astype(np.float32) / 255
        mixed: Array = pixels[..., :3] * opaque + self._background * (1 - opaque)
        return mixed.round().astype(np.uint8)


def _parts(box: Box, size: tuple[int, int], whole: bool) -> Iterator[Box]:
    """What OpenSlide is asked for.

    Where a level is not a whole number of times smaller, OpenSlide shifts a region by the fraction
    of a pixel that its corner has on level 0. Blocks with corners of their own make the same pixel
    the same in every region.
    """
    if whole and not box.empty:
        yield box
    elif not whole:
        yield from (block.intersect(Box.full(size)) for _, block in touched(box, _BLOCK))


def _tile(properties: Any, level: int) -> tuple[int, int]:
    """As it is stored, if that is known; otherwise whatever is asked for."""
    names = [f"openslide.level[{level}].tile-{side}" for side in ("height", "width")]
    rows, columns = (int(properties.get(name, 1)) for name in names)
    return rows, columns
