"""Data sets on disk: CIFAR-10, and folders of pictures. A rank decodes what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError

CIFAR_SIZE = 32
_RECORD = 1 + 3 * CIFAR_SIZE**2
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


class Dataset(Protocol):
    """Pictures of one size with a label each."""

    labels: Tensor

    def read(self, number: int, rows: slice, columns: slice) -> Tensor:
        """Part of a picture, `(3, rows, columns)`, in [-1, 1]."""
        ...


class Selection:
    """Some pictures of a data set, as an array that has a shape and slices and holds nothing."""

    def __init__(self, dataset: Dataset, numbers: Tensor, size: int, workers: int = 0) -> None:
        self.shape = (len(numbers), 3, size, size)
        self.dtype = torch.get_default_dtype()
        self._dataset, self._numbers, self._workers = dataset, numbers.tolist(), workers

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        samples, channels, rows, columns = where
        numbers = self._numbers[samples]

        def read(number: int) -> Tensor:
            return self._dataset.read(number, rows, columns)[channels]

        pictures = list(_mapped(read, numbers, self._workers))
        return torch.stack(pictures) if pictures else torch.empty(0, *self._part(where[1:]))

    def _part(self, where: tuple[slice, ...]) -> list[int]:
        return [len(range(n)[s]) for n, s in zip(self.shape[1:], where, strict=True)]


def _mapped(read: Callable[[int], Tensor], numbers: list[int], workers: int) -> Iterable[Tensor]:
    if workers == 0:
        return map(read, numbers)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(read, numbers))


class Cifar:
    """CIFAR-10 in its binary form: files of records, a label and 3 × 32 × 32 bytes."""

    def __init__(self, path: Path) -> None:
        folder = path / "cifar-10-batches-bin"
        files = sorted((folder if folder.is_dir() else path).glob("data_batch_*.bin"))
        if not files:
            raise DataError(
                f"{_listing(path)}; --app 2 reads CIFAR-10's binary version: unpack it, so that "
                f"there is {path}/cifar-10-batches-bin/data_batch_1.bin"
            )
        self._records = [_records(file) for file in files]
        first = [records[:, 0] for records in self._records]
        self.labels = torch.from_numpy(np.concatenate(first).astype(np.int64))
        if int(self.labels.max()) > 9:
            raise DataError(f"{path} has the label {int(self.labels.max())}, and CIFAR-10 has 0-9")
        self._ends = np.cumsum([len(records) for records in self._records])

    def read(self, number: int, rows: slice, columns: slice) -> Tensor:
        file = int(np.searchsorted(self._ends, number, side="right"))
        record = self._records[file][number - self._ends[file]]
        picture = record[1:].reshape(3, CIFAR_SIZE, CIFAR_SIZE)[:, rows, columns]
        return _scaled(np.asarray(picture))


def _records(file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    size = file.stat().st_size
    if size == 0 or size % _RECORD:
        raise DataError(
            f"{file} has {size} bytes, which is no number of CIFAR-10 records of {_RECORD} bytes: "
            "it is incomplete, or another format (this reads the binary version)"
        )
    return np.memmap(file, np.uint8, "r").reshape(-1, _RECORD)


class PictureFolder:
    """A folder for each class, with pictures in it. Those of another size are resized."""

    def __init__(self, path: Path, size: int, classes: int) -> None:
        _need_pillow()
        folders = sorted(f for f in path.iterdir() if f.is_dir()) if path.is_dir() else []
        found = [_pictures(folder) for folder in folders]
        if not any(found):
            raise DataError(
                f"{_listing(path)}; --app 1 reads a folder of pictures for each class, such as "
                f"{path}/benign/1.png and {path}/malignant/1.png"
            )
        empty = [folder.name for folder, files in zip(folders, found, strict=True) if not files]
        if empty:
            raise DataError(f"the class {empty[0]!r} in {path} has no pictures: remove its folder")
        if len(folders) > classes:
            raise DataError(
                f"{path} has {len(folders)} classes, and --num-classes is {classes}: use "
                f"--num-classes {len(folders)}"
            )
        self._files = [file for files in found for file in files]
        self.labels = torch.tensor([label for label, files in enumerate(found) for _ in files])
        self._size = size
        self.read(0, slice(0, 1), slice(0, 1))

    def read(self, number: int, rows: slice, columns: slice) -> Tensor:
        from PIL import Image, UnidentifiedImageError

        file = self._files[number]
        try:
            with Image.open(file) as picture:
                whole = picture.convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} cannot be read as a picture: {error}") from error
        if whole.size != (self._size, self._size):
            whole = whole.resize((self._size, self._size), Image.Resampling.BILINEAR)
        return _scaled(np.asarray(whole)[rows, columns].transpose(2, 0, 1))


def _pictures(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in _PICTURES]


def _need_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise DataError(
            "--app 1 reads pictures with Pillow, which is not installed: "
            "pip install 'mpi4dl[commands]'"
        ) from None


def _listing(path: Path) -> str:
    """What is there instead of data."""
    if not path.exists():
        return f"--datapath {path} does not exist"
    if not path.is_dir():
        return f"--datapath {path} is a file, not a folder"
    found = "neither pictures nor records" if any(path.iterdir()) else "nothing"
    return f"--datapath {path} has {found} in it"


def _scaled(picture: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    pixels = torch.from_numpy(picture.copy()).contiguous()
    return pixels.to(torch.get_default_dtype()).div_(127.5).sub_(1)
