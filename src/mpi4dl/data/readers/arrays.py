"""Arrays of any origin, such as those that NumPy maps to a file, as images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DataError
from ...geometry import Box
from ..reader import Array


@dataclass(frozen=True)
class Axes:
    """Where an array has its rows, columns and channels; all others have the length 1."""

    rows: int
    columns: int
    channels: int | None
    count: int
    """Of all axes."""

    @classmethod
    def named(cls, axes: str, shape: Sequence[int], name: str) -> Axes:
        """`axes` has a letter for each: Y, X, and C or S; the others must have the length 1."""
        names = axes.upper()
        long = {a: n for a, n in zip(names, shape, strict=True) if n != 1 and a not in "YX"}
        channels = [a for a in long if a in "CS"] or [a for a in names if a in "CS"]
        others = {a: n for a, n in long.items() if a not in channels[:1]}
        if others or "Y" not in names or "X" not in names:
            raise DataError(
                f"{name} has the axes {axes} of {tuple(shape)}; an image has Y, X and at most one "
                "of C and S: save the planes that are meant as files of their own"
            )
        channel = names.index(channels[0]) if channels else None
        return cls(names.index("Y"), names.index("X"), channel, len(names))

    @classmethod
    def guessed(cls, shape: Sequence[int], name: str) -> Axes:
        """Of three axes, the channels are the first or the last, whichever is shorter."""
        if len(shape) == 2:
            return cls.named("YX", shape, name)
        if len(shape) == 3:
            return cls.named("CYX" if shape[0] <= shape[2] else "YXC", shape, name)
        raise DataError(
            f"{name} has the shape {tuple(shape)}; an image has rows, columns, and may have "
            "channels before or after them"
        )

    def size(self, shape: Sequence[int]) -> tuple[int, int]:
        return shape[self.rows], shape[self.columns]

    def channels_of(self, shape: Sequence[int]) -> int:
        return 1 if self.channels is None else shape[self.channels]

    def region(self, array: Any, box: Box) -> Array:
        """`(channels, h, w)` of an array with these axes."""
        where: list[Any] = [0] * self.count
        kept = [a for a in (self.channels, self.rows, self.columns) if a is not None]
        for axis in kept:
            where[axis] = slice(None)
        where[self.rows] = slice(box[0].start, box[0].stop)
        where[self.columns] = slice(box[1].start, box[1].stop)
        part = np.asarray(array[tuple(where)])
        order = [sorted(kept).index(a) for a in kept]
        part = part.transpose(order)
        return part[None] if self.channels is None else part
