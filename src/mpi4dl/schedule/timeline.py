"""When each actor did what: simulated, or recorded by an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .action import Action


@dataclass(frozen=True, slots=True)
class Span:
    action: Action
    start: float
    stop: float

    @property
    def duration(self) -> float:
        return self.stop - self.start


@dataclass(frozen=True)
class Timeline:
    """`spans[actor]` in the order of time."""

    spans: tuple[tuple[Span, ...], ...]

    @cached_property
    def makespan(self) -> float:
        """From the first start of anything to the last stop of anything."""
        working = [spans for spans in self.spans if spans]
        first = min((spans[0].start for spans in working), default=0.0)
        return max((spans[-1].stop for spans in working), default=0.0) - first

    @cached_property
    def length(self) -> float:
        """The longest that any one actor takes, from its own first start to its own last stop.

        This is what a step costs in a long row of steps. It is the makespan if one actor is the
        first to start and the last to stop. If the schedule leans, like a parallelogram, the
        actors that are done begin the next step while the others still finish this one.
        """
        return max((spans[-1].stop - spans[0].start for spans in self.spans if spans), default=0.0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """How long each actor computes."""
        return tuple(sum(span.duration for span in spans) for spans in self.spans)

    @property
    def bubble(self) -> float:
        """The part of `length` that an actor is idle, on average: the published bubble fraction."""
        return 1 - sum(self.busy) / len(self.busy) / self.length if self.length else 0.0


def render(timeline: Timeline, unit: float = 1) -> str:
    """A row for every actor, a column for every `unit` of time.

    `F0` is the forward of micro-batch 0, `──` goes on with what stands before, `·` is idle. The
    stage is written before it where an actor has more than one.
    """
    alone = all(
        len({(s.action.stage, s.action.direction) for s in row}) <= 1 for row in timeline.spans
    )
    origin = min((spans[0].start for spans in timeline.spans if spans), default=0.0)
    rows = [
        [
            (
                _column(s.start - origin, unit),
                _column(s.stop - origin, unit),
                _label(s.action, alone),
            )
            for s in spans
        ]
        for spans in timeline.spans
    ]
    columns = max((cells[-1][1] for cells in rows if cells), default=0)
    width = max((len(label) for cells in rows for _, _, label in cells), default=1)
    numbers = len(str(len(rows) - 1))
    return "\n".join(
        f"{actor:{numbers}} │ {' '.join(_row(cells, columns, width))}".rstrip()
        for actor, cells in enumerate(rows)
    )


def _column(time: float, unit: float) -> int:
    return round(time / unit)


def _label(action: Action, alone: bool) -> str:
    text = str(action)
    return text.removeprefix(str(action.stage)) if alone else text


def _row(cells: Sequence[tuple[int, int, str]], columns: int, width: int) -> list[str]:
    row = ["·".ljust(width)] * columns
    for start, stop, label in cells:
        row[start:stop] = ["─" * width] * (stop - start)
        if start < stop:
            row[start] = label.ljust(width)
    return row
