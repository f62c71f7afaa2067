"""Evaluation and inference: forwards, as soon as they can start.

    0 │ F0 F1 F2 F3 ·  ·
    1 │ ·  F0 F1 F2 F3 ·
    2 │ ·  ·  F0 F1 F2 F3

Nothing is kept for a backward, so nothing limits how many micro-batches are under way.
"""

from __future__ import annotations

from .action import Action, Kind
from .greedy import greedy
from .placement import Placement, check_counts
from .schedule import Schedule


def forward_only(placement: Placement, micro_batches: int) -> Schedule:
    """For weights that lie as in `placement`: a training schedule's, usually.

    In a bidirectional pipeline the micro-batches alternate between the directions.
    """
    check_counts(micro_batches=micro_batches)
    directions = tuple(i % placement.directions for i in range(micro_batches))

    def preference(action: Action) -> tuple[int, ...]:
        return (action.micro_batch or 0, action.stage)

    lists = greedy(placement, directions, (Kind.FORWARD,), preference)
    return Schedule("forward-only", placement, directions, lists)
