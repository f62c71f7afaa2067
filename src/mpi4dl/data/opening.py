"""`open_image`: the reader that fits a file, by its suffix and what is in it."""

from __future__ import annotations

from pathlib import Path

from .reader import RegionReader

READERS = ("tiff", "openslide", "geotiff", "zarr", "numpy", "picture")


def open_image(
    path: str | Path, *, reader: str | None = None, indices: bool = False
) -> RegionReader:
    """Open an image of any size, of which regions are read.

    `reader` is one of `READERS`; by default the suffix and the first bytes say which.
    `indices`: of pictures with a palette, read the numbers of the colours, as masks mean them.
    """
    raise NotImplementedError
