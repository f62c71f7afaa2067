"""Chimera: two pipelines in opposite directions fill each other's bubbles (Li and Hoefler, 2021).

    0 │ 0F0  0F2  ·    3F1' 3B1' ──── 3F3' 3B3' ──── ·    0B0  ──── ·    ·    0B2  ────
    1 │ ·    1F0  2F1' 1F2  2F3' ·    2B1' ──── 1B0  ──── 2B3' ──── 1B2  ──── ·    ·
    2 │ ·    1F1' 2F0  1F3' 2F2  ·    2B0  ──── 1B1' ──── 2B2  ──── 1B3' ──── ·    ·
    3 │ 0F1' 0F3' ·    3F0  3B0  ──── 3F2  3B2  ──── ·    0B1' ──── ·    ·    0B3' ────

The weights are there twice, as in GEMS; micro-batches alternate between the directions. Made by
rule: forwards before backwards, and of each direction no more micro-batches at once than 1F1B
would hold, of both together no more than there are actors. Which forward goes first, if there are
several, is decided by trying.

Made for an even number of actors. With an odd one, the actor in the middle has the middle stage of
both pipelines, where they collide; there, it is about as good as 1F1B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from .action import Action, Kind
from .greedy import greedy
from .placement import check_counts, loop
from .schedule import Schedule
from .simulate import shortest

ORDER = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)

Rule: TypeAlias = Callable[[Action, int], tuple[int, ...]]

RULES: tuple[Rule, ...] = (
    lambda action, micro_batch: (micro_batch,),
    lambda action, micro_batch: (-action.stage, micro_batch),
    # One direction is ahead on the way there, the other one on the way back: for odd numbers.
    lambda action, micro_batch: (action.direction ^ (action.kind is not Kind.FORWARD), micro_batch),
)


def chimera(actors: int, micro_batches: int) -> Schedule:
    """`micro_batches` of both directions together."""
    return _bidirectional("chimera", actors, micro_batches, (Kind.FORWARD, Kind.BACKWARD))


def zb_chimera(actors: int, micro_batches: int) -> Schedule:
    """With the backwards split as in ZB-H1: the weight parts fill what Chimera leaves idle."""
    split = (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT)
    return _bidirectional("zb-chimera", actors, micro_batches, split)


def _bidirectional(name: str, actors: int, micro_batches: int, kinds: tuple[Kind, ...]) -> Schedule:
    check_counts(micro_batches=micro_batches)
    placement = loop(actors).mirrored()
    directions = tuple(i % 2 for i in range(micro_batches))

    def room(forward: Action, live: Counter[int]) -> bool:
        own = live[forward.direction]
        return own < actors - forward.stage and live.total() < actors

    def made(rule: Rule) -> Schedule:
        def preference(action: Action) -> tuple[int, ...]:
            return (ORDER.index(action.kind), *rule(action, action.micro_batch or 0))

        lists = greedy(placement, directions, kinds, preference, room)
        return Schedule(name, placement, directions, lists)

    return shortest(*map(made, RULES))
