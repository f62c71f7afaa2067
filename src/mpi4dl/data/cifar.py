"""CIFAR-10 and CIFAR-100 from local files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..errors import DataError
from ..geometry import Box
from .dataset import Opened
from .listings import listing
from .picture import Size
from .reader import Array, Tally
from .view import View

CIFAR_SIZE = 32
_PIXELS = 3 * CIFAR_SIZE**2


@dataclass(frozen=True)
class _Version:
    """Where one of the two data sets has its files."""

    name: str
    folder: str
    train: str
    test: str
    label_bytes: int
    """Of a record of the binary version; the last one is the class."""

    python_folder: str
    python_train: str
    python_test: str
    python_labels: str
    class_names: str


_VERSIONS = {
    10: _Version(
        "CIFAR-10",
        "cifar-10-batches-bin",
        "data_batch_*.bin",
        "test_batch.bin",
        1,
        "cifar-10-batches-py",
        "data_batch_[0-9]",
        "test_batch",
        "labels",
        "batches.meta.txt",
    ),
    100: _Version(
        "CIFAR-100",
        "cifar-100-binary",
        "train.bin",
        "test.bin",
        2,
        "cifar-100-python",
        "train",
        "test",
        "fine_labels",
        "fine_label_names.txt",
    ),
}


def cifar(
    path: str | Path, classes: Literal[10, 100] = 10, train: bool = True, view: View | None = None
) -> Cifar:
    """CIFAR-10 or CIFAR-100: their binary version, or the one for Python.

    The latter consists of pickles. They are read as data: one that names any function but those
    that make NumPy's arrays is refused, and nothing is called.
    """
    if classes not in _VERSIONS:
        raise DataError(f"there is CIFAR-10 and CIFAR-100, and classes is {classes}")
    version, path = _VERSIONS[classes], Path(path)
    binary = _files(path, version.folder, version.train if train else version.test)
    if binary:
        parts = [_records(file, version) for file in binary]
    else:
        pattern = version.python_train if train else version.python_test
        parts = [_unpickled(f, version) for f in _files(path, version.python_folder, pattern)]
    if not parts:
        first = version.train.replace("*", "1") if train else version.test
        raise DataError(
            f"{listing(path)}; this reads {version.name}'s binary version: unpack it, so that "
            f"there is {path / version.folder / first}"
        )
    return Cifar(path, parts, _class_names(binary, version, classes), view)


class Cifar:
    """Made by `cifar`."""

    lasting = True
    channels = 3

    def __init__(
        self,
        path: Path,
        parts: list[tuple[Array, Array]],
        classes: tuple[str, ...],
        view: View | None,
    ) -> None:
        self.classes, self.view = classes, view or View()
        self.size = self.view.size or (CIFAR_SIZE, CIFAR_SIZE)
        self._path, self._pixels = path, [pixels for _, pixels in parts]
        labels = np.concatenate([labels for labels, _ in parts]).astype(np.int64)
        if labels.max(initial=0) >= len(classes):
            raise DataError(
                f"{path} has the label {labels.max()}, and CIFAR-{len(classes)} has "
                f"0-{len(classes) - 1}"
            )
        self.labels = torch.from_numpy(labels)
        self._ends = np.cumsum([len(pixels) for pixels in self._pixels])

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"image {index} of {self._path}"

    @contextmanager
    def opened(self, index: int, tally: Tally) -> Iterator[Opened]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        pixels = self._pixels[part][index - self._ends[part]]
        whole = pixels.reshape(3, CIFAR_SIZE, CIFAR_SIZE)
        yield Opened(_Held(whole, tally), None, whole.dtype)


@dataclass(frozen=True, eq=False)
class _Held:
    """A picture in memory, or in a file that is mapped to it."""

    pixels: Array
    tally: Tally

    @property
    def size(self) -> Size:
        return self.pixels.shape[1], self.pixels.shape[2]

    def read(self, box: Box) -> Array:
        part = np.asarray(self.pixels[:, box[0].start : box[0].stop, box[1].start : box[1].stop])
        self.tally.add(part.nbytes, part.nbytes)
        return part


def _files(path: Path, folder: str, pattern: str) -> list[Path]:
    inner = path / folder
    return sorted((inner if inner.is_dir() else path).glob(pattern))


def _records(file: Path, version: _Version) -> tuple[Array, Array]:
    """Labels and pixels."""
    record = version.label_bytes + _PIXELS
    size = file.stat().st_size
    if size == 0 or size % record:
        raise DataError(
            f"{file} has {size} bytes, which is no number of {version.name} records of {record} "
            "bytes: it is incomplete, or another format (this reads the binary version)"
        )
    records = np.memmap(file, np.uint8, "r").reshape(-1, record)
    return records[:, version.label_bytes - 1], records[:, version.label_bytes :]


_OF_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _Arrays(pickle.Unpickler):
    """Knows NumPy's arrays, and nothing else that could be called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _OF_ARRAYS:
            raise DataError(f"it would call {module}.{name}, which no data set has to")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickled(file: Path, version: _Version) -> tuple[Array, Array]:
    try:
        with file.open("rb") as opened:
            found = _Arrays(opened, encoding="latin1").load()
        pixels = np.asarray(found["data"], np.uint8).reshape(-1, _PIXELS)
        labels = np.asarray(found[version.python_labels], np.int64).reshape(len(pixels))
    except Exception as error:
        said = str(error) or type(error).__name__
        raise DataError(f"{file} cannot be read as a part of {version.name}: {said}") from error
    return labels, pixels


def _class_names(binary: list[Path], version: _Version, classes: int) -> tuple[str, ...]:
    file = binary[0].with_name(version.class_names) if binary else None
    names = file.read_text(encoding="utf-8").split() if file and file.is_file() else []
    return tuple(names) if len(names) == classes else tuple(map(str, range(classes)))
