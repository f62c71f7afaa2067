"""Resized pictures, region by region.

The weights of an output pixel follow from where it is in the whole picture, and its terms are added
up in one order, so that a tile is exactly that part of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..geometry import Box, Interval
from .picture import Picture, Size
from .reader import Array


@dataclass(frozen=True)
class Resized:
    """Bilinear with antialiasing, as Pillow resizes, or the nearest pixel."""

    below: Picture
    size: Size
    smooth: bool = True

    def read(self, box: Box) -> Array:
        taps = _smooth if self.smooth else _nearest
        axes = [taps(n, m) for n, m in zip(self.below.size, self.size, strict=True)]
        needed = Box(tuple(axis.needed(i) for axis, i in zip(axes, box, strict=True)))
        pixels = self.below.read(needed)
        if not self.smooth:
            rows, columns = (
                axis.start[i.start : i.stop] - n.start
                for axis, i, n in zip(axes, box, needed, strict=True)
            )
            return pixels[:, rows[:, None], columns]
        resized = pixels.astype(np.float64 if pixels.dtype.itemsize > 2 else np.float32)
        for dim, axis in enumerate(axes):
            resized = axis.applied(resized, dim + 1, box[dim], needed[dim])
        if pixels.dtype.kind in "iu":
            resized = resized.round()
        return resized.astype(pixels.dtype)


@dataclass(frozen=True, eq=False)
class _Taps:
    """Output o of an axis is the sum over t of `weights[t, o]` × input `start[o] + t`."""

    start: Array
    weights: Array
    n: int

    def needed(self, outputs: Interval) -> Interval:
        if outputs.empty:
            return Interval(0, 0)
        last = self.start[outputs.stop - 1] + len(self.weights)
        return Interval(int(self.start[outputs.start]), int(last))

    def applied(self, pixels: Array, axis: int, outputs: Interval, held: Interval) -> Array:
        first = self.start[outputs.start : outputs.stop] - held.start
        shape = [-1 if a == axis else 1 for a in range(3)]
        total: Array = np.zeros(1, pixels.dtype)
        for t, weights in enumerate(self.weights[:, outputs.start : outputs.stop]):
            weight = weights.astype(pixels.dtype).reshape(shape)
            total = total + weight * pixels.take(first + t, axis)
        return total


@lru_cache(maxsize=16)
def _smooth(n: int, m: int) -> _Taps:
    """A triangle as wide as two outputs, or as two inputs if these are further apart."""
    scale = n / m
    reach = max(scale, 1.0)
    centres = (np.arange(m) + 0.5) * scale
    count = min(n, int(np.ceil(2 * reach)) + 1)
    start = np.floor(centres - reach).astype(np.int64).clip(0, n - count)
    places = start + np.arange(count)[:, None]
    weights = (1 - abs(places + 0.5 - centres) / reach).clip(0)
    return _Taps(start, weights / weights.sum(0), n)


@lru_cache(maxsize=16)
def _nearest(n: int, m: int) -> _Taps:
    start = (2 * np.arange(m, dtype=np.int64) + 1) * n // (2 * m)
    return _Taps(start, np.ones((1, m)), n)
