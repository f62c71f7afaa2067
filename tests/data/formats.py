"""One image, written in every format that is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

Array = np.ndarray[Any, np.dtype[Any]]
Write = Callable[[Path, Array], None]

SIZE = (203, 157)
BLOCK = 32
DOWN = 4
"""From one level of a pyramid to the next."""


def pixels(channels: int, dtype: str, seed: int = 0) -> Array:
    """`(channels, *SIZE)`: noise on a ramp, so that no two regions are alike."""
    brightest = np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else 1
    random = np.random.default_rng(seed).random((channels, *SIZE))
    ramp = np.add.outer(np.arange(SIZE[0]), np.arange(SIZE[1])) / sum(SIZE)
    return ((0.5 * random + 0.5 * ramp) * brightest).astype(dtype)


def smaller(image: Array) -> Array:
    return np.ascontiguousarray(image[:, ::DOWN, ::DOWN])


def _last(image: Array) -> Array:
    return np.ascontiguousarray(image.transpose(1, 2, 0).squeeze())


def tiff(path: Path, image: Array, **options: Any) -> None:
    photometric = "rgb" if len(image) == 3 else "minisblack"
    tifffile.imwrite(path, _last(image), photometric=photometric, metadata=None, **options)


def pyramid(path: Path, image: Array, **options: Any) -> None:
    """Levels as pages of their own, as slide scanners write them."""
    options = {"tile": (BLOCK, BLOCK), "photometric": "rgb", "compression": "zlib"} | options
    with tifffile.TiffWriter(path) as file:
        for level in range(3):
            file.write(_last(image), subfiletype=int(level > 0), metadata=None, **options)
            image = smaller(image)


def separate(path: Path, image: Array) -> None:
    options = {"tile": (BLOCK, BLOCK), "compression": "lzw", "planarconfig": "separate"}
    tifffile.imwrite(path, image, photometric="rgb", metadata=None, **options)


def ome(path: Path, image: Array) -> None:
    """A page for each channel, and levels inside of it."""
    options = {"tile": (BLOCK, BLOCK), "compression": "zlib", "photometric": "minisblack"}
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(image, subifds=2, metadata={"axes": "CYX"}, **options)
        for _ in range(2):
            image = smaller(image)
            file.write(image, subfiletype=1, **options)


def geotiff(path: Path, image: Array) -> None:
    rasterio = pytest.importorskip("rasterio")
    options = {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK, "compress": "deflate"}
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        height=image.shape[1],
        width=image.shape[2],
        count=len(image),
        dtype=image.dtype,
        crs="EPSG:32633",
        transform=rasterio.Affine(10, 0, 500000, 0, -10, 5400000),
        **options,
    ) as file:
        file.write(image)
        file.build_overviews([DOWN, DOWN**2], rasterio.enums.Resampling.nearest)


def zarr_array(path: Path, image: Array) -> None:
    zarr = pytest.importorskip("zarr")
    made = zarr.create_array(path, shape=image.shape, chunks=(1, BLOCK, BLOCK), dtype=image.dtype)
    made[:] = image


def ome_zarr(path: Path, image: Array, version: str = "0.4") -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=2 if version == "0.4" else 3)
    for level in range(3):
        chunks = (1, len(image), BLOCK, BLOCK)
        shape = (1, *image.shape)
        group.create_array(str(level), shape=shape, chunks=chunks, dtype=image.dtype)[:] = image[
            None
        ]
        image = smaller(image)
    scales = {
        "axes": [{"name": name} for name in "tcyx"],
        "datasets": [{"path": str(level)} for level in range(3)],
    }
    if version == "0.4":
        group.attrs["multiscales"] = [scales]
    else:
        group.attrs["ome"] = {"version": version, "multiscales": [scales]}


def png(path: Path, image: Array) -> None:
    Image.fromarray(_last(image)).save(path)


@dataclass(frozen=True)
class Format:
    file: str
    write: Write
    channels: int = 3
    dtype: str = "u1"
    levels: int = 1
    reader: str | None = None
    block: tuple[int, int] | None = (BLOCK, BLOCK)
    """What is unpacked at once; None: single pixels."""

    by_library: bool = False
    """Which reads from the file itself: the kernel counts what. Coarse levels are GDAL's own, or
    shifted by OpenSlide by a fraction of a pixel."""


TILES = {"tile": (BLOCK, BLOCK)}

FORMATS = {
    "pyramid": Format("a.tif", pyramid, levels=3),
    "big endian, 16 bits": Format("a.tiff", partial(tiff, byteorder=">", **TILES), 3, "u2"),
    "BigTIFF, predictor": Format(
        "a.btf", partial(tiff, bigtiff=True, compression="zstd", predictor=True, **TILES)
    ),
    "strips": Format(
        "a.tif", partial(tiff, compression="lzw", rowsperstrip=16), block=(16, SIZE[1])
    ),
    "grey floats": Format("a.tif", partial(tiff, compression="zlib", **TILES), 1, "f4"),
    "channels apart": Format("a.tif", separate),
    "neither packed nor tiled": Format("a.tif", tiff, block=None),
    "OME-TIFF": Format("a.ome.tif", ome, 5, "u2", levels=3),
    "OpenSlide": Format("a.tif", pyramid, levels=3, reader="slide", by_library=True),
    "GeoTIFF": Format("a.tif", geotiff, 4, "u2", levels=3, by_library=True),
    "Zarr": Format("a.zarr", zarr_array, 3, "u2"),
    "OME-Zarr 0.4": Format("a.ome.zarr", ome_zarr, levels=3),
    "OME-Zarr 0.5": Format("a.zarr", partial(ome_zarr, version="0.5"), levels=3),
    "NumPy, channels first": Format("a.npy", np.save, 3, "f4", block=None),
    "NumPy, channels last": Format("a.npy", lambda p, i: np.save(p, _last(i)), block=None),
    "NumPy, grey": Format("a.npy", lambda p, i: np.save(p, i[0]), 1, "u2", block=None),
    "PNG": Format("a.png", png, block=SIZE),
    "grey PNG, 16 bits": Format("a.png", png, 1, "u2", block=SIZE),
}
