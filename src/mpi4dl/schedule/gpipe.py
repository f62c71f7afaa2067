"""GPipe: all forwards, then all backwards (Huang et al., 2019).

    0 │ F0 F1 F2 ·  ·  ·  ·  ·  ·  B0 ── B1 ── B2 ──
    1 │ ·  F0 F1 F2 ·  ·  ·  B0 ── B1 ── B2 ── ·  ·
    2 │ ·  ·  F0 F1 F2 B0 ── B1 ── B2 ── ·  ·  ·  ·

Every actor holds the activations of all micro-batches at the turn.
"""

from __future__ import annotations

from .action import Action, Kind
from .placement import check_counts, loop
from .schedule import Schedule


def gpipe(actors: int, micro_batches: int) -> Schedule:
    check_counts(micro_batches=micro_batches)
    there, back = Kind.FORWARD, Kind.BACKWARD
    return Schedule(
        "gpipe",
        loop(actors),
        (0,) * micro_batches,
        tuple(
            tuple(Action(kind, stage, i) for kind in (there, back) for i in range(micro_batches))
            for stage in range(actors)
        ),
    )
