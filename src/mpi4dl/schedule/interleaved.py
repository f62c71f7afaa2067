"""Interleaved 1F1B: several stages an actor, so that the pipeline fills sooner (Narayanan 2021).

    0 │ 0F0 0F1 0F2 2F0 2F1 2F2 ·   2B0 ─── ·   2B1 ─── ·   2B2 ─── 0B0 ─── 0B1 ─── 0B2 ───
    1 │ ·   1F0 1F1 1F2 3F0 3B0 ─── 3F1 3B1 ─── 3F2 3B2 ─── 1B0 ─── 1B1 ─── 1B2 ─── ·   ·

The bubble shrinks by the number of stages an actor has; messages and memory grow. Micro-batches
pass in groups of about as many as there are actors: a group on the actor's first stage, the same
group on its second, and so on, then the next group. Any number of micro-batches will do: groups
differ by at most one, the larger ones first, so that nobody waits for a group that is too small.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from .action import Action, Kind
from .one_f_one_b import alternate
from .placement import check_counts, loop
from .schedule import Schedule


def interleaved(actors: int, micro_batches: int, stages_per_actor: int = 2) -> Schedule:
    check_counts(micro_batches=micro_batches)
    placement = loop(actors, stages_per_actor)
    groups = _groups(actors, micro_batches)

    def order(actor: int) -> tuple[Action, ...]:
        def walk(kind: Kind, chunks: Iterable[int]) -> list[Action]:
            stages = [chunk * actors + actor for chunk in chunks]
            return [Action(kind, s, i) for group in groups for s in stages for i in group]

        chunks = range(stages_per_actor)
        return alternate(
            walk(Kind.FORWARD, chunks),
            walk(Kind.BACKWARD, reversed(chunks)),
            # Up to the last stage of the first micro-batch, there and back.
            warm_up=(stages_per_actor - 1) * len(groups[0]) + 2 * (actors - 1 - actor),
        )

    lists = tuple(map(order, range(actors)))
    return Schedule("interleaved", placement, (0,) * micro_batches, lists)


def _groups(actors: int, micro_batches: int) -> list[range]:
    """At least `actors` micro-batches each, if there are so many: 10 for 4 actors are 5 and 5."""
    count = max(1, micro_batches // actors)
    size, larger = divmod(micro_batches, count)
    starts = [g * size + min(g, larger) for g in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]
