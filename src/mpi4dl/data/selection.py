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
class Request:
    """What one slice of a batch asks for."""

    masks: bool
    samples: range
    """Places in the batch."""

    box: Box


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
            regions = asked(
                Request(False, range(samples.start, samples.stop), Box((rows, columns)))
            )
            chosen = slice(channels.start, channels.stop)
            if not regions:
                return torch.empty(0, *box.shape[1:], dtype=dtype)
            return torch.stack([region.pixels[chosen] for region in regions])

        def masks(box: Box) -> Tensor:
            samples, rows, columns = box
            regions = asked(Request(True, range(samples.start, samples.stop), Box((rows, columns))))
            if not regions:
                return torch.empty(0, *box.shape[1:], dtype=torch.int64)
            return torch.stack([region.pixels for region in regions])

        lazy = LazyArray((count, data.channels, *data.size), dtype, images)
        if data.labels is None:
            return lazy, LazyArray((count, *data.size), torch.int64, masks)
        return lazy, data.labels[list(self.indices)]

    def read(self, place: int, masks: bool, box: Box, tally: Tally) -> Region:
        region = mask_region if masks else image_region
        return region(self.dataset, self.indices[place], box, self.changes[place], tally)
