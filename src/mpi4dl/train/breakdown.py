"""Where the time of a step went, on one rank.

spans    ──F0──────  ─SF0─          ──B0──────────  ─R─
calls      ▂   ▂      ▂    ▂▂▂▂▂▂     ▂  ▂    ▂      ▂  ▂▂▂
           halo             waiting    halo              gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from ..schedule import Kind, Span
from .timed import Call

_GRADIENTS = ("gradients", "mirror")


@dataclass(frozen=True)
class Breakdown:
    """Seconds of a step; together they are all of it."""

    compute: float
    halo: float
    """In forwards and backwards, in calls about tiles: border pixels, statistics, losses."""
    transfer: float
    """Sending to the next stage or the one before it, and posting what is to come from there."""
    gradients: float
    """Adding gradients up, and waiting for others to do so. Running statistics count here."""
    waiting: float
    """For what another stage has not sent yet."""
    other: float
    """The optimizer, and what lies between all that."""


def broken_down(seconds: float, spans: Sequence[Span], calls: Sequence[Call]) -> Breakdown:
    """`spans` and `calls` of a step that took so long, both in the order of time."""
    inside: dict[Kind | None, dict[str, float]] = {}
    for call, kind in zip(calls, _surrounding(spans, calls), strict=True):
        uses = inside.setdefault(kind, {})
        uses[call.use] = uses.get(call.use, 0.0) + call.stop - call.start
    computing = sum(span.duration for span in spans if span.action.kind.computes)
    computed = [uses for kind, uses in inside.items() if kind is not None and kind.computes]
    talking = sum(sum(uses.values()) for uses in computed)
    begun = sum(t for uses in computed for use, t in uses.items() if use in _GRADIENTS)
    moving = sum(s.duration for s in spans if s.action.kind.sends or s.action.kind.receives)
    reducing = sum(s.duration for s in spans if s.action.kind is Kind.REDUCE)
    outside = inside.get(None, {})
    finished = sum(t for use, t in outside.items() if use in _GRADIENTS)
    waiting = sum(outside.values()) - finished
    parts = (
        computing - talking,
        talking - begun,
        moving,
        reducing + begun + finished,
        waiting,
    )
    return Breakdown(*parts, other=max(0.0, seconds - sum(parts)))


def _surrounding(spans: Sequence[Span], calls: Sequence[Call]) -> list[Kind | None]:
    """What the rank was doing when it made each call."""
    kinds: list[Kind | None] = []
    place = 0
    for call in calls:
        while place < len(spans) and spans[place].stop < call.start:
            place += 1
        within = place < len(spans) and spans[place].start <= call.start
        kinds.append(spans[place].action.kind if within else None)
    return kinds


def mean(breakdowns: Sequence[Breakdown]) -> Breakdown:
    columns = zip(*map(astuple, breakdowns), strict=True)
    return Breakdown(*(sum(column) / len(breakdowns) for column in columns))
