"""1F1B: one forward, one backward (PipeDream-Flush: Narayanan et al., 2021).

    0 │ F0 F1 F2 ·  ·  ·  ·  B0 ── F3 B1 ── ·  B2 ── ·  B3 ──
    1 │ ·  F0 F1 ·  ·  B0 ── F2 B1 ── F3 B2 ── ·  B3 ── ·  ·
    2 │ ·  ·  F0 B0 ── F1 B1 ── F2 B2 ── F3 B3 ── ·  ·  ·  ·

As fast as GPipe, in the memory of `actors` micro-batches, however many there are: actor a starts
with actors - 1 - a forwards, and from then on gives back before it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from .action import Action, Kind
from .placement import check_counts, loop
from .schedule import Schedule


def one_f_one_b(actors: int, micro_batches: int) -> Schedule:
    check_counts(micro_batches=micro_batches)

    def order(stage: int) -> tuple[Action, ...]:
        return alternate(
            [Action(Kind.FORWARD, stage, i) for i in range(micro_batches)],
            [Action(Kind.BACKWARD, stage, i) for i in range(micro_batches)],
            warm_up=actors - 1 - stage,
        )

    placement = loop(actors)
    return Schedule("1f1b", placement, (0,) * micro_batches, tuple(map(order, range(actors))))


def alternate(
    forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int
) -> tuple[Action, ...]:
    """`F F F`, then `F B F B …`, then `B B B`: equally many of both, `warm_up` forwards ahead."""
    first = min(warm_up, len(forwards))
    steady = len(forwards) - first
    pairs = zip(forwards[first:], backwards[:steady], strict=True)
    return (*forwards[:first], *(action for pair in pairs for action in pair), *backwards[steady:])
