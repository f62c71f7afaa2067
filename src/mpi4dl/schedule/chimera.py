"""Chimera: two pipelines in opposite directions fill each other's bubbles (Li and Hoefler, 2021).

@draw chimera 4 4

The weights are there twice, as in GEMS; micro-batches alternate between the directions. Made by
rule: forwards before backwards, the oldest micro-batch first, and of each direction no more
micro-batches at once than 1F1B would hold, of both together no more than there are actors.

Made for an even number of actors. With an odd one, the actor in the middle has the middle stage of
both pipelines, and slows both.
"""

from __future__ import annotations

from collections import Counter

from .action import Action, Kind
from .greedy import greedy
from .placement import check_counts, loop
from .schedule import Schedule

_RANK = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)


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

    def preference(action: Action) -> tuple[int, ...]:
        return (_RANK.index(action.kind), action.micro_batch or 0, action.stage)

    def room(forward: Action, live: Counter[int]) -> bool:
        own = live[forward.direction]
        return own < actors - forward.stage and live.total() < actors

    return Schedule(
        name, placement, directions, greedy(placement, directions, kinds, preference, room)
    )
