"""GEMS MASTER: batches alternate between a model and its mirror image (Jain et al., 2020).

    0 │ 0F0  ·    ·    ·    ·    ·    ·    0B0  ──── 2F1' 2B1' ──── ·    ·    ·    ·
    1 │ ·    1F0  ·    ·    ·    1B0  ──── 1F1' ·    ·    ·    ·    1B1' ──── ·    ·
    2 │ ·    ·    2F0  2B0  ──── 0F1' ·    ·    ·    ·    ·    ·    ·    ·    0B1' ────

Where the backward of a batch has freed an actor, the next batch can begin, at the other end. So
the memory is that of one batch, however many there are, and the weights are there twice. Inside of
a batch, micro-batches follow each other as in GPipe.
"""

from __future__ import annotations

from .action import Action, Kind
from .placement import check_counts, loop
from .schedule import Schedule


def gems(actors: int, parts: int, times: int = 2) -> Schedule:
    """`times` batches of `parts` micro-batches each. With `times` 1 there is no mirror image."""
    check_counts(parts=parts, times=times)
    placement = loop(actors) if times == 1 else loop(actors).mirrored()
    directions = tuple(batch % 2 for batch in range(times) for _ in range(parts))

    def order(actor: int) -> tuple[Action, ...]:
        stage = (actor, actors - 1 - actor)  # in either direction
        return tuple(
            Action(kind, stage[batch % 2], i, batch % 2)
            for batch in range(times)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for i in range(batch * parts, (batch + 1) * parts)
        )

    return Schedule("gems", placement, directions, tuple(map(order, range(actors))))
