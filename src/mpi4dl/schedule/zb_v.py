"""Zero bubble V: two stages an actor, in the shape of a V (Qi et al., 2023).

    0 │ 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 ·
    1 │ ·   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

A micro-batch comes back to the actor from which it started, so the first actor is also the first
that can begin backward; with weight parts in the gaps, no actor is ever idle between its first and
its last action, once there are 2·actors - 1 micro-batches. The memory is 1F1B's.
"""

from __future__ import annotations

from collections import Counter

from .action import Action, Kind
from .greedy import greedy
from .placement import Placement, check_counts, vee
from .schedule import Schedule
from .simulate import shortest

PARTS = (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT)


def zb_v(actors: int, micro_batches: int) -> Schedule:
    check_counts(micro_batches=micro_batches)
    placement = vee(actors)

    def make(lists: tuple[tuple[Action, ...], ...]) -> Schedule:
        return Schedule("zb-v", placement, (0,) * micro_batches, lists)

    by_hand = make(tuple(_order(actors, micro_batches, actor) for actor in range(actors)))
    if micro_batches >= 2 * actors - 1:
        return by_hand
    # Too few micro-batches for the pattern: gaps open in it, and a rule of thumb closes some.
    by_rule = make(_by_rule(placement, micro_batches, live=2 * actors))
    return shortest(by_rule, by_hand)


def _order(actors: int, micro_batches: int, actor: int) -> tuple[Action, ...]:
    """Qi et al.'s pattern, for 2·actors - 1 micro-batches or more. Those that are not there go.

    F F F F F F F   F·F·   F·IW IW   F·IW F·IW …   I I·   IW IW   W· W·  W W
    (· marks the stage on the way back)
    """
    F, I, W = PARTS  # noqa: E741
    there, back = actor, 2 * actors - 1 - actor
    total = max(micro_batches, 2 * actors - 1)
    seen: Counter[tuple[Kind, int]] = Counter()
    order: list[Action] = []

    def add(stage: int, *kinds: Kind) -> None:
        for kind in kinds:
            order.append(Action(kind, stage, seen[kind, stage]))
            seen[kind, stage] += 1

    ahead = actors - actor
    for _ in range(2 * ahead - 1):
        add(there, F)
    for _ in range(actor):
        add(back, F)
        add(there, F)
    for _ in range(ahead):
        add(back, F, I, W)
    while seen[F, back] < total:
        if seen[F, there] < total:
            add(there, F)
        add(there, I, W)
        add(back, F, I, W)
    for _ in range(actor):
        add(there, I)
        add(back, I)
    for _ in range(ahead):
        add(there, I, W)
    for stage in (back, there):
        for _ in range(total - seen[W, stage]):
            add(stage, W)
    return tuple(a for a in order if a.micro_batch is not None and a.micro_batch < micro_batches)


def _by_rule(placement: Placement, micro_batches: int, live: int) -> tuple[tuple[Action, ...], ...]:
    def preference(action: Action) -> tuple[int, ...]:
        return (PARTS.index(action.kind), -action.stage, action.micro_batch or 0)

    def room(forward: Action, held: Counter[int]) -> bool:
        return held.total() < live

    return greedy(placement, (0,) * micro_batches, PARTS, preference, room)
