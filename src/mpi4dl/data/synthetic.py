"""Images that nobody stores: a pixel is a hash of where it is, whichever tile asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..geometry import Box
from .dataset import Opened
from .picture import Size
from .reader import Array, Tally
from .view import View

_ODD = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)


@dataclass(frozen=True)
class Noise:
    """Image `number` of a seed, `(3, *size)`, in [-1, 1)."""

    number: int
    size: Size
    seed: int

    def read(self, box: Box) -> Array:
        rows, columns = (torch.arange(i.start, i.stop, dtype=torch.int64) for i in box)
        channels = torch.arange(3, dtype=torch.int64)
        number = torch.tensor([self.number * 3 + _wrapped(self.seed * _ODD[3])])
        across = _mixed(_mixed(number, 0) + rows * _ODD[1], 1)[None, :, None]
        along = _mixed(channels[:, None] + columns * _ODD[2], 2)[:, None, :]
        # Now on all pixels, so in 32 bits; a number's upper bits are what a fraction shows.
        bits = across.to(torch.int32) ^ along.to(torch.int32)
        bits ^= (bits >> 15) & 0x1FFFF
        bits *= 0x2C1B3C6D
        noise: Array = bits.to(torch.get_default_dtype()).div_(2.0**31).numpy()
        return noise


@dataclass(frozen=True)
class Reddish:
    """1 where an image has more red than none."""

    image: Noise

    @property
    def size(self) -> Size:
        return self.image.size

    def read(self, box: Box) -> Array:
        return self.image.read(box)[:1] > 0


class Synthetic:
    """So many images of noise. Their labels are noise as well; with `masks`, each pixel has one
    of two classes, which can be learned: whether its red is above 0."""

    lasting = True

    def __init__(
        self, count: int, size: Size, classes: int = 10, seed: int = 0, masks: bool = False
    ) -> None:
        self.classes = tuple(map(str, range(2 if masks else classes)))
        self.channels, self.size, self.view = 3, size, View(size)
        self.labels = None if masks else _labels(count, classes, seed)
        self._count, self._seed = count, seed

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        return f"synthetic image {index}"

    @contextmanager
    def opened(self, index: int, tally: Tally) -> Iterator[Opened]:
        dtype = np.dtype(str(torch.get_default_dtype()).removeprefix("torch."))
        image = Noise(index, self.size, self._seed)
        yield Opened(image, None if self.labels is not None else Reddish(image), dtype)


def _labels(count: int, classes: int, seed: int) -> Tensor:
    numbers = torch.arange(count, dtype=torch.int64)
    hashes = _mixed(numbers + _wrapped(seed * _ODD[0]), 3)
    return hashes.bitwise_and(2**31 - 1) % classes


def _wrapped(number: int) -> int:
    return number % 2**31


def _mixed(numbers: Tensor, kind: int) -> Tensor:
    """Hashes within 32 signed bits, of numbers that are few: a row or a column."""
    bits = (numbers * _ODD[kind] + _ODD[kind - 1]) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return (bits ^ (bits >> 16)) - 2**31
