"""`FileDataset`: samples that are files, each opened when a region of it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..errors import DataError
from ..geometry import Box
from .dataset import Opened
from .open_files import OpenFiles
from .opening import open_image
from .picture import AtLevel, Picture, Size
from .reader import Array, RegionReader, Tally, check_level, nearest_level
from .resampling import Resized
from .view import View

IGNORED = -100
"""The class of pixels that have none: PyTorch's losses leave it out."""


@dataclass(frozen=True)
class Item:
    """One sample: an image, and its class or its mask."""

    image: Path
    label: int | None = None
    mask: Path | None = None
    split: str = ""
    """Such as `train`, if a table says so."""

    group: str = ""
    """Such as the patient: samples of a group are never split up."""


class FileDataset:
    """Made by `image_folder`, `slide_table` and `image_masks`.

    `mask_values` are those of the mask files in the order of the classes, such as (0, 255); by
    default a mask holds the numbers of the classes. Pixels of the value `mask_ignore` become
    `IGNORED`.
    """

    lasting = False

    def __init__(
        self,
        items: Sequence[Item],
        classes: Sequence[str],
        view: View | None = None,
        *,
        mask_values: Sequence[int] | None = None,
        mask_ignore: int | None = None,
        reader: str | None = None,
    ) -> None:
        if not items:
            raise DataError("a data set needs at least one image")
        self.items, self.classes, self.view = tuple(items), tuple(classes), view or View()
        self.labels = None
        if items[0].mask is None:
            self.labels = torch.tensor([item.label for item in items])
        self._mask_values, self._mask_ignore, self._reader = mask_values, mask_ignore, reader
        self._files = OpenFiles(self._open)
        self.channels, self.size = self._shape()

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        return str(self.items[index].image)

    @contextmanager
    def opened(self, index: int, tally: Tally) -> Iterator[Opened]:
        item = self.items[index]
        with ExitStack() as stack:
            reader = stack.enter_context(self._files.of(item.image, False))
            image = self._image(reader, tally)
            mask: Picture | None = None
            if item.mask is not None:
                of_mask = stack.enter_context(self._files.of(item.mask, True))
                mask = self._mask(of_mask, image.size, tally)
            yield Opened(image, mask, reader.dtype)

    def check(self, index: int) -> None:
        """Open a sample, and read a corner of it."""
        corner = Box.of((0, 1), (0, 1))
        with self.opened(index, Tally()) as sample:
            sample.image.read(corner)
            if sample.mask is not None:
                sample.mask.read(corner)

    def subset(self, indices: Sequence[int]) -> FileDataset:
        """These samples, in this order."""
        items = [self.items[i] for i in indices]
        # Samples keep the size that they have in the whole.
        view = replace(self.view, size=self.size, channels=self.channels)
        return FileDataset(
            items,
            self.classes,
            view,
            mask_values=self._mask_values,
            mask_ignore=self._mask_ignore,
            reader=self._reader,
        )

    def where(self, split: str) -> FileDataset:
        """The samples that a table put there: `dataset.where("train")`."""
        found = [i for i, item in enumerate(self.items) if item.split == split]
        if not found:
            splits = ", ".join(sorted({repr(item.split) for item in self.items}))
            raise DataError(f"no sample belongs to {split!r}; there are {splits}")
        return self.subset(found)

    def _open(self, path: Path, mask: bool) -> RegionReader:
        return open_image(path, reader=self._reader, indices=mask)

    def _shape(self) -> tuple[int, Size]:
        if self.view.size is not None and self.view.channels is not None:
            return self.view.channels, self.view.size
        with self._files.of(self.items[0].image, False) as reader:
            size = self.view.size or self._image(reader, None).size
            return self.view.channels or reader.channels, size

    def _image(self, reader: RegionReader, tally: Tally | None) -> Picture:
        view = self.view
        if view.level == "fit" and view.size is not None:
            finest = reader.levels[0].size
            ratio = min(n / m for n, m in zip(finest, view.size, strict=True))
            return AtLevel(reader, nearest_level(reader, ratio), tally)
        if view.downsample is None:
            level = int(view.level or 0)
            check_level(reader, level)
            return AtLevel(reader, level, tally)
        level = nearest_level(reader, view.downsample)
        at = AtLevel(reader, level, tally)
        rows, columns = (max(1, round(n / view.downsample)) for n in reader.levels[0].size)
        return at if at.size == (rows, columns) else Resized(at, (rows, columns))

    def _mask(self, reader: RegionReader, size: Size, tally: Tally) -> Picture:
        """At the size of the image, from the level that is nearest to it."""
        level = nearest_level(reader, max(1.0, reader.levels[0].size[0] / size[0]))
        values = self._mask_values
        if values is None:
            values = range(len(self.classes))
        at = AtLevel(reader, level, tally)
        picture: Picture = Classes(at, tuple(values), self._mask_ignore, reader.name)
        return picture if picture.size == size else Resized(picture, size, smooth=False)


@dataclass(frozen=True)
class Classes:
    """The first channel of a mask, as numbers of classes."""

    below: Picture
    values: tuple[int, ...]
    """Of the classes, in the mask."""

    ignore: int | None
    name: str

    @property
    def size(self) -> Size:
        return self.below.size

    def read(self, box: Box) -> Array:
        found = self.below.read(box)[:1].astype(np.int64)
        values, count = np.array(self.values), len(self.values)
        plain = (values == np.arange(count)).all()
        if plain and found.min(initial=0) >= 0 and found.max(initial=0) < count:
            return found  # nothing but classes: without copies, for masks are large
        order = np.argsort(values)
        numbers = order[np.searchsorted(values[order], found).clip(0, count - 1)]
        known = values[numbers] == found
        if self.ignore is not None:
            numbers = np.where(found == self.ignore, IGNORED, numbers)
            known |= found == self.ignore
        if not known.all():
            raise DataError(
                f"{self.name} has the value {found[~known][0]} in it, and those of the classes are "
                f"{', '.join(map(str, self.values))}: name all classes, or say which mask_values "
                "they have, or which value to ignore"
            )
        return numbers
