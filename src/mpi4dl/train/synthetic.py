"""Images that nobody stores: a pixel is a hash of where it is, whichever tile asks for it."""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)


class SyntheticImages:
    """`count` images of `(3, size, size)`, of which the first is image number `first` of a seed.

    It has a shape and slices. Whatever the slices, the same pixel has the same value in [-1, 1).
    """

    def __init__(self, count: int, size: int, first: int, seed: int) -> None:
        self.shape = (count, 3, size, size)
        self.dtype = torch.get_default_dtype()
        self._first, self._seed = first, seed

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        ranges = [range(n)[s] for n, s in zip(self.shape, where, strict=True)]
        images, channels, rows, columns = (
            torch.arange(r.start, r.stop, r.step or 1, dtype=torch.int64) for r in ranges
        )
        number = _mixed((images + self._first) * 3 + _wrapped(self._seed * _ODD[3]), 0)
        across = _mixed(number[:, None] + rows * _ODD[1], 1)[:, None, :, None]
        along = _mixed(channels[:, None] + columns * _ODD[2], 2)[None, :, None, :]
        # Now on all pixels, so in 32 bits; a number's upper bits are what a fraction shows.
        bits = across.to(torch.int32) ^ along.to(torch.int32)
        bits ^= (bits >> 15) & 0x1FFFF
        bits *= 0x2C1B3C6D
        return bits.to(self.dtype).div_(2.0**31)


def synthetic_labels(count: int, classes: int, first: int, seed: int) -> Tensor:
    numbers = torch.arange(first, first + count, dtype=torch.int64)
    return _mixed(numbers + _wrapped(seed * _ODD[0]), 3).bitwise_and(2**31 - 1) % classes


def _wrapped(number: int) -> int:
    return number % 2**31


def _mixed(numbers: Tensor, kind: int) -> Tensor:
    """Hashes within 32 signed bits, of numbers that are few: a row or a column."""
    bits = (numbers * _ODD[kind] + _ODD[kind - 1]) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return (bits ^ (bits >> 16)) - 2**31
