"""`open_image`: the reader that fits a file, by its suffix and what is in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DataError
from .reader import RegionReader
from .readers.geotiff import GeoReader
from .readers.numpy_file import NumpyReader
from .readers.picture_file import PictureReader
from .readers.slide import SlideReader
from .readers.surroundings import library
from .readers.tiff import TiffReader
from .readers.zarr_array import ZarrReader

_READERS: dict[str, Callable[[Path, bool], RegionReader]] = {
    "geo": lambda path, _: GeoReader(path),
    "numpy": lambda path, _: NumpyReader(path),
    "picture": PictureReader,
    "slide": lambda path, _: SlideReader(path),
    "tiff": TiffReader,
    "zarr": lambda path, _: ZarrReader(path),
}

_SUFFIXES = {
    "geo": ".vrt .jp2 .img",
    "numpy": ".npy",
    "picture": ".png .jpg .jpeg .bmp .gif .webp .ppm .pgm",
    "slide": ".svs .ndpi .mrxs .scn .vms .vmu .svslide .bif .dcm",
    "tiff": ".tif .tiff .ome.tif .ome.tiff .btf .tf8",
    "zarr": ".zarr",
}

_BY_SUFFIX = {suffix: kind for kind, text in _SUFFIXES.items() for suffix in text.split()}

_BEGINNINGS = {
    b"\x93NUMPY": "numpy",
    b"\x89PNG": "picture",
    b"\xff\xd8\xff": "picture",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
}

_GEO_KEYS = 34735
"""The tag that makes a TIFF a GeoTIFF."""


def open_image(
    path: str | Path, *, reader: str | None = None, indices: bool = False
) -> RegionReader:
    """Open an image of any size, of which regions are read.

    `reader` is `geo`, `numpy`, `picture`, `slide`, `tiff` or `zarr`; by default the suffix and what
    is in the file say which. `indices`: of pictures with a palette, read the numbers of the
    colours, as masks mean them.
    """
    path = Path(path)
    if reader is not None and reader not in _READERS:
        raise DataError(f"reader is {reader!r}; it must be one of {', '.join(sorted(_READERS))}")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    return _READERS[reader or _fitting(path)](path, indices)


def is_image(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in _BY_SUFFIX


def _fitting(path: Path) -> str:
    kind = _BY_SUFFIX.get(path.suffix.lower()) or _by_beginning(path)
    return "geo" if kind == "tiff" and _georeferenced(path) else kind


def _by_beginning(path: Path) -> str:
    if path.is_dir():
        if any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup")):
            return "zarr"
        raise DataError(f"{path} is a folder, and not one of Zarr")
    with path.open("rb") as file:
        beginning = file.read(8)
    for known, kind in _BEGINNINGS.items():
        if beginning.startswith(known):
            return kind
    raise DataError(
        f"{path} is of a kind that is not known by its suffix or beginning: say which reader it "
        f"is for ({', '.join(sorted(_READERS))})"
    )


def _georeferenced(path: Path) -> bool:
    tifffile: Any = library("tifffile", "data", "TIFF files are read")
    try:
        with tifffile.TiffFile(path) as file:
            return _GEO_KEYS in file.pages.first.tags
    except Exception:  # what is wrong with it, its reader says
        return False
