"""Zarr arrays, and OME-Zarr with its pyramid."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ...errors import DataError
from ...geometry import Box
from ..reader import Array, Level, Tally
from .arrays import Axes
from .blocks import pixels_touched
from .surroundings import blamed_on, library


class ZarrReader:
    """A single array, or the first multiscale image of an OME-Zarr group."""

    held = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        zarr = library("zarr", "zarr", "Zarr is read")
        with blamed_on(self.name, "read as Zarr"):
            self._store = _counting(zarr)(zarr.storage.LocalStore(path, read_only=True))
            opened = zarr.open(self._store, mode="r")
            self._arrays, names = _pyramid(opened, self.name)
        shape = self._arrays[0].shape
        self._axes = (
            Axes.named(names, shape, self.name) if names else Axes.guessed(shape, self.name)
        )
        self.channels = self._axes.channels_of(shape)
        self.dtype = np.dtype(self._arrays[0].dtype).newbyteorder("=")
        sizes = [self._axes.size(array.shape) for array in self._arrays]
        self.levels = tuple(Level(size, sizes[0][0] / size[0]) for size in sizes)

    def read(self, box: Box, level: int = 0, tally: Tally | None = None) -> Array:
        array = self._arrays[level]
        with blamed_on(self.name, "read"):
            part = np.ascontiguousarray(self._axes.region(array, box), self.dtype)
        if tally is not None:
            block = self._axes.size(array.chunks)
            pixels = pixels_touched(box, block, self.levels[level].size)
            tally.add(self._store.taken(), pixels * self.channels * self.dtype.itemsize)
        return part

    def close(self) -> None:
        self._store.close()


def _pyramid(opened: Any, name: str) -> tuple[list[Any], str]:
    """The arrays from fine to coarse, and the letters of their axes if they are said."""
    if hasattr(opened, "shape"):
        return [opened], ""
    attributes = dict(opened.attrs)
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        arrays = ", ".join(sorted(key for key, _ in opened.arrays())) or "none"
        raise DataError(
            f"{name} is a Zarr group without the multiscales of OME-Zarr; give the path of one of "
            f"its arrays ({arrays})"
        )
    axes = "".join(axis["name"] for axis in scales[0].get("axes", []))
    return [opened[dataset["path"]] for dataset in scales[0]["datasets"]], axes


def _counting(zarr: Any) -> Any:
    """A store that knows how many bytes were got from it."""

    class Counting(zarr.storage.WrapperStore):  # type: ignore[misc]
        def __init__(self, store: Any) -> None:
            super().__init__(store)
            self._count, self._lock = 0, Lock()

        async def get(self, *arguments: Any, **options: Any) -> Any:
            found = await super().get(*arguments, **options)
            if found is not None:
                with self._lock:
                    self._count += len(found)
            return found

        def taken(self) -> int:
            """Bytes since this was asked before."""
            with self._lock:
                count, self._count = self._count, 0
            return count

    return Counting
