"""Layer parallelism: one micro-batch after the other, all the way there and back.

    0 │ F0 ·  ·  ·  ·  ·  ·  B0 ── F1 ·  ·  ·  ·  ·  ·  B1 ──
    1 │ ·  F0 ·  ·  ·  B0 ── ·  ·  ·  F1 ·  ·  ·  B1 ── ·  ·
    2 │ ·  ·  F0 B0 ── ·  ·  ·  ·  ·  ·  F1 B1 ── ·  ·  ·  ·

Nobody works at the same time as anybody else. With one micro-batch this is plain layer (or model)
parallelism; with several it needs the memory of one.
"""

from __future__ import annotations

from .action import Action, Kind
from .placement import check_counts, loop
from .schedule import Schedule


def layer(actors: int, micro_batches: int) -> Schedule:
    check_counts(micro_batches=micro_batches)
    there_and_back = (Kind.FORWARD, Kind.BACKWARD)
    return Schedule(
        "layer",
        loop(actors),
        (0,) * micro_batches,
        tuple(
            tuple(Action(kind, stage, i) for i in range(micro_batches) for kind in there_and_back)
            for stage in range(actors)
        ),
    )
