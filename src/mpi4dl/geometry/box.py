"""Half-open integer ranges, and boxes made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ..errors import GeometryError


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The integers `start <= i < stop`. Bounds may lie outside an image (padding does)."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.stop < self.start:
            raise GeometryError(f"interval [{self.start}, {self.stop}) ends before it starts")

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def empty(self) -> bool:
        return self.stop == self.start

    def intersect(self, other: Interval) -> Interval:
        """The common part; where there is none, an empty interval."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def contains(self, other: Interval) -> bool:
        return other.empty or (self.start <= other.start and other.stop <= self.stop)

    def shift(self, offset: int) -> Interval:
        return Interval(self.start + offset, self.stop + offset)

    def slice_in(self, outer: Interval) -> slice:
        """This interval as a Python slice of an array that holds `outer`."""
        return slice(self.start - outer.start, self.stop - outer.start)

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


@dataclass(frozen=True)
class Box:
    """One interval for each split axis: the region of a tensor that a rank holds or wants."""

    intervals: tuple[Interval, ...]

    @classmethod
    def of(cls, *bounds: tuple[int, int]) -> Box:
        return cls(tuple(Interval(start, stop) for start, stop in bounds))

    @classmethod
    def full(cls, size: Iterable[int]) -> Box:
        return cls(tuple(Interval(0, n) for n in size))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(i.size for i in self.intervals)

    @cached_property
    def volume(self) -> int:
        return prod(self.shape)

    @property
    def empty(self) -> bool:
        return self.volume == 0

    def intersect(self, other: Box) -> Box:
        pairs = zip(self.intervals, other.intervals, strict=True)
        return Box(tuple(a.intersect(b) for a, b in pairs))

    def contains(self, other: Box) -> bool:
        pairs = zip(self.intervals, other.intervals, strict=True)
        return other.empty or all(a.contains(b) for a, b in pairs)

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        pairs = zip(self.intervals, outer.intervals, strict=True)
        return tuple(a.slice_in(b) for a, b in pairs)

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.intervals)

    def __getitem__(self, axis: int) -> Interval:
        return self.intervals[axis]

    def __len__(self) -> int:
        return len(self.intervals)

    def __str__(self) -> str:
        return "[" + ", ".join(map(str, self.intervals)) + "]"
