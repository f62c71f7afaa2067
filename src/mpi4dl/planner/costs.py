"""A stage's costs, put together from the traces of its units.

    entrance ─ unit 0 ─ boundary 1 ─ unit 1 ─ boundary 2 ─ ...

What lies on a boundary is an output of one unit and an input of the next; it is in memory once, for
backward, if either of them has kept it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from ..pipeline.description import Description
from .recorder import Operator, Talk
from .trace import Pass, Trace

T = TypeVar("T")


@dataclass(frozen=True)
class StageCosts:
    """Of one micro-batch on one rank of a stage, in bytes above what there was before."""

    units: tuple[Trace, ...]
    incoming: Description
    entrance_stays: bool
    """Whether the input is held anyway, as a leaf that gets a gradient."""
    later: bool = False
    """In a schedule of split backwards: nobody waits for this one, and all of it is weights."""

    @property
    def outgoing(self) -> Description:
        return self.units[-1].description

    @cached_property
    def entrance(self) -> int:
        """Of the input, while it is here."""
        return sum(end.bytes for end in self.units[0].inputs)

    @cached_property
    def exit(self) -> int:
        """Of the output, until it has been passed on; without what is kept anyway."""
        last = len(self.units)
        return sum(size for where, size, kept in self._classes if last in where and not kept)

    @cached_property
    def kept(self) -> int:
        """For backward, without the entrance."""
        return self._kept_until(len(self.units))

    @cached_property
    def entrance_kept(self) -> int:
        """Of the entrance, until backward."""
        if self.entrance_stays:
            return self.entrance
        return sum(size for where, size, kept in self._classes if 0 in where and kept)

    @cached_property
    def entrance_gradient(self) -> int:
        """Of the inputs that want one."""
        leaves = zip(self.incoming.tensors, self.units[0].inputs, strict=True)
        return sum(end.bytes for leaf, end in leaves if leaf.wants_gradient)

    @cached_property
    def exit_gradient(self) -> int:
        leaves = zip(self.outgoing.tensors, self.units[-1].outputs, strict=True)
        return sum(end.bytes for leaf, end in leaves if leaf.wants_gradient)

    @cached_property
    def gradients(self) -> int:
        return sum(unit.gradients for unit in self.units)

    @cached_property
    def forward_peak(self) -> int:
        """Above what there was when the input was there."""
        return max(
            self._kept_until(number) + self._passing(number) + unit.forward.peak
            for number, unit in enumerate(self.units)
        )

    def backward_peak(self, part: int, first: bool, flat: bool = False) -> int:
        """Above what there was after forward. Part 0 is all of it, or that of the inputs.

        `first`: no gradients are there yet, and each unit leaves those of its parameters. `flat`:
        each unit's gradients are put together at once, to be added up.
        """
        peaks, above = [], 0
        for number in reversed(range(len(self.units))):
            unit = self.units[number]
            now = unit.backward[min(part, len(unit.backward) - 1)]
            freed = 0 if self.stays else self.kept - self._wanted_until(number + 1)
            held = self.exit_gradient if part == 0 and number < len(self.units) - 1 else 0
            peaks.append(held + above - freed + (now.peak if first else now.peak_again))
            if part == 0 and self.splits:
                above += now.left
            else:
                above += unit.gradients * (first + flat)
        return max(peaks)

    @property
    def stays(self) -> bool:
        """Whether what is kept for backward is kept to its end."""
        return self.splits or self.later

    @cached_property
    def held_between_parts(self) -> int:
        """What the first part of a backward keeps for the second."""
        return sum(unit.backward[0].left for unit in self.units) if self.splits else 0

    @property
    def splits(self) -> bool:
        return any(len(unit.backward) > 1 for unit in self.units)

    def _kept_until(self, number: int) -> int:
        """By the units before this one, with the boundaries that they have finished with."""
        inner = sum(unit.inner for unit in self.units[:number])
        return inner + sum(
            size
            for where, size, kept in self._classes
            if kept and 0 not in where and min(where) <= number
        )

    def _wanted_until(self, number: int) -> int:
        """What the units before this one still want on the way back."""
        inner = sum(unit.inner for unit in self.units[:number])
        return inner + sum(
            size
            for where, size, keepers in self._classes
            if keepers and 0 not in where and min(keepers) < number
        )

    def _passing(self, number: int) -> int:
        """The input of a unit, if nothing else holds it."""
        return sum(
            size
            for where, size, kept in self._classes
            if number in where and not kept and 0 not in where
        )

    @cached_property
    def _classes(self) -> tuple[tuple[frozenset[int], int, frozenset[int]], ...]:
        """Of each storage that lies on boundaries: on which, its bytes, and who keeps it."""
        place: dict[tuple[int, int], int] = {}
        where: list[set[int]] = []
        sizes: list[int] = []
        kept: list[set[int]] = []

        def meet(key: tuple[int, int], size: int, keeper: int | None, same: int | None) -> None:
            if key not in place:
                if same is None:
                    where.append(set())
                    sizes.append(size)
                    kept.append(set())
                place[key] = len(where) - 1 if same is None else same
            number = place[key]
            where[number].add(key[0])
            if keeper is not None:
                kept[number].add(keeper)

        for boundary, unit in enumerate(self.units):
            for i, end in enumerate(unit.inputs):
                meet((boundary, i), end.bytes, boundary if end.kept else None, None)
            for i, end in enumerate(unit.outputs):
                same = None if end.same is None else place[boundary, end.same]
                meet((boundary + 1, i), end.bytes, boundary if end.kept else None, same)
        return tuple(
            (frozenset(w), size, frozenset(k))
            for w, size, k in zip(where, sizes, kept, strict=True)
        )

    # ── work ─────────────────────────────────────────────────────────────────────────────────

    def passes(self, part: int | None) -> Iterator[Pass]:
        """Of all units: forward (None), or a part of backward."""
        for unit in self.units:
            if part is None:
                yield unit.forward
            elif part < len(unit.backward):
                yield unit.backward[part]

    def operators(self, part: int | None) -> Counter[Operator]:
        return _sum([p.record.operators for p in self.passes(part)])

    def fetched(self, part: int | None) -> int:
        """Bytes in blocks so large that the system has each of them back as soon as it is free."""
        return sum(p.fetched for p in self.passes(part))

    def talks(self, part: int | None) -> Counter[Talk]:
        return _sum([p.record.talks for p in self.passes(part)])


def _sum(counters: Sequence[Counter[T]]) -> Counter[T]:
    total: Counter[T] = Counter()
    for counter in counters:
        total.update(counter)
    return total
