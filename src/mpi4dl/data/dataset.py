"""`Dataset`: what a loader needs to know of a collection of images, and how one sample is read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..geometry import Box
from .augment import Change
from .picture import Picture, Size
from .reader import Array, Tally
from .view import View


@dataclass(frozen=True)
class Opened:
    """One sample: its image, and its mask if there are masks."""

    image: Picture
    mask: Picture | None
    dtype: np.dtype[Any]
    """Of the image's pixels in the file."""


class Dataset(Protocol):
    """Images with a label each, or with a mask each. The same on every rank."""

    classes: tuple[str, ...]

    @property
    def labels(self) -> Tensor | None:
        """The class of every sample; None if there are masks instead."""
        ...

    channels: int
    """Of a sample, as `view` has it."""

    size: Size
    """Rows and columns of every sample, as `view` has it."""

    view: View
    lasting: bool
    """Whether reading cannot fail, because nothing is read from files."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """For messages: the file, usually."""
        ...

    def opened(self, index: int, tally: Tally) -> AbstractContextManager[Opened]:
        """A sample, as long as the context lasts. Threads may do this at once."""
        ...


@dataclass(frozen=True)
class Region:
    pixels: Tensor
    stored: int
    """Bytes that as many pixels have in the file's data type."""


def image_region(
    dataset: Dataset, index: int, box: Box, change: Change | None, tally: Tally
) -> Region:
    """Of a sample's image, changed and fitted: `(channels, h, w)` in the default dtype."""
    view = dataset.view
    with dataset.opened(index, tally) as sample:
        scale = _brightest(sample.dtype)
        picture = sample.image
        if change is not None:
            picture = change.image(picture, view.fill, scale)
        name = dataset.name(index)
        pixels = view.fitted(picture, dataset.size, view.fill, True, name).read(box)
    stored = pixels.size * sample.dtype.itemsize
    pixels = _with_channels(pixels, dataset.channels)
    return Region(_normalised(pixels, view, sample.dtype), stored)


def mask_region(
    dataset: Dataset, index: int, box: Box, change: Change | None, tally: Tally
) -> Region:
    """Of a sample's mask, changed and fitted as the image: `(h, w)`, classes."""
    view = dataset.view
    with dataset.opened(index, tally) as sample:
        assert sample.mask is not None
        picture = sample.mask
        if change is not None:
            picture = change.mask(picture, view.mask_fill)
        name = dataset.name(index)
        classes = view.fitted(picture, dataset.size, view.mask_fill, False, name).read(box)
    return Region(torch.from_numpy(np.ascontiguousarray(classes[0], np.int64)), classes[0].size)


def _brightest(dtype: np.dtype[Any]) -> float:
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0


def _with_channels(pixels: Array, channels: int) -> Array:
    if len(pixels) == channels:
        return pixels
    return np.repeat(pixels[:1], channels, 0) if len(pixels) < 3 else pixels[:channels]


def _normalised(pixels: Array, view: View, dtype: np.dtype[Any]) -> Tensor:
    default = torch.get_default_dtype()
    floats = pixels.astype(np.float64 if default == torch.float64 else np.float32, "C")
    usual = (0.5, 0.5) if dtype.kind in "iu" else (0.0, 1.0)
    mean, std = (
        torch.tensor(otherwise if said is None else said).view(-1, 1, 1)
        for said, otherwise in zip((view.mean, view.std), usual, strict=True)
    )
    tensor = torch.from_numpy(floats).to(default)
    return tensor.div_(std * _brightest(dtype)).sub_(mean / std)
