"""`Selection`: the samples of a batch, as arrays that have a shape and slices and hold nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from ..geometry import Box, Interval
from .augment import Change
from .dataset import Dataset, Region, image_region, mask_region
from .reader import Tally


@dataclass(frozen=True)
class Part:
    """A region of one sample of a batch."""

    place: int
    """In the batch."""

    masks: bool
    box: Box


@dataclass(frozen=True)
class Request:
    """What one slice of a batch asks for."""

    places: range
    masks: bool
    box: Box

    def parts(self) -> list[Part]:
        return [Part(place, self.masks, self.box) for place in self.places]


class LazyArray:
    """Has a shape and a dtype, and reads a region when it is sliced."""

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, read: Callable[[Box], Tensor]
    ) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | tuple[slice, ...]) -> Tensor:
        slices = where if isinstance(where, tuple) else (where,)
        if len(slices) > len(self.shape) or not all(isinstance(s, slice) for s in slices):
            raise DataError(
                f"an array of shape {self.shape} is read by slices, one for each dimension; "
                f"it was asked for {where}"
            )
        slices += (slice(None),) * (len(self.shape) - len(slices))
        ranges = [range(n)[s] for n, s in zip(self.shape, slices, strict=True)]
        if any(r.step != 1 for r in ranges):
            raise DataError(f"regions are read without steps; slices were {where}")
        return self._read(Box(tuple(Interval(r.start, max(r.start, r.stop)) for r in ranges)))

    def __repr__(self) -> str:
        return f"LazyArray(shape={self.shape}, dtype={self.dtype})"


@dataclass(frozen=True)
class Selection:
    """`indices` of a data set, each with what was drawn for it."""

    dataset: Dataset
    indices: tuple[int, ...]
    changes: tuple[Change | None, ...]

    def arrays(self, asked: Callable[[Request], list[Region]]) -> tuple[Any, Any]:
        """Images and labels, or masks, whose regions `asked` reads."""
        data, count = self.dataset, len(self.indices)
        dtype = torch.get_default_dtype()

        def images(box: Box) -> Tensor:
            samples, channels, rows, columns = box
            places = range(samples.start, samples.stop)
            regions = asked(Request(places, False, Box((rows, columns))))
            chosen = slice(channels.start, channels.stop)
            return _stacked([region.pixels[chosen] for region in regions], box, dtype)

        def masks(box: Box) -> Tensor:
            samples, rows, columns = box
            places = range(samples.start, samples.stop)
            regions = asked(Request(places, True, Box((rows, columns))))
            return _stacked([region.pixels for region in regions], box, torch.int64)

        lazy = LazyArray((count, data.channels, *data.size), dtype, images)
        if data.labels is None:
            return lazy, LazyArray((count, *data.size), torch.int64, masks)
        return lazy, data.labels[list(self.indices)]

    def read(self, part: Part, tally: Tally) -> Region:
        region = mask_region if part.masks else image_region
        index, change = self.indices[part.place], self.changes[part.place]
        return region(self.dataset, index, part.box, change, tally)


def _stacked(parts: list[Tensor], box: Box, dtype: torch.dtype) -> Tensor:
    """A batch; of a single sample without a copy, which may be as large as memory allows."""
    if len(parts) == 1:
        return parts[0][None]
    return torch.stack(parts) if parts else torch.empty(box.shape, dtype=dtype)
