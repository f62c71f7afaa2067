"""Schedules as text files: to keep, to compare, and to write by hand.

    schedule 1f1b
    stages 0 1
    micro-batches 2
    actor 0: 0F0 0F1 0B0 0B1
    actor 1: 1F0 1B0 1F1 1B1

`stages` lists the actor of every stage. A bidirectional schedule has a second such line,
`mirrored`, and the direction of every micro-batch (`micro-batches 0 1 0 1`) in place of their
number.
"""

from __future__ import annotations

from ..errors import ScheduleError
from .action import Action
from .placement import Placement
from .schedule import Schedule


def dump(schedule: Schedule) -> str:
    rows = schedule.placement.table
    both = len(rows) == 2
    return "\n".join(
        [
            f"schedule {schedule.name}",
            *(f"{title} {_join(row)}" for title, row in zip(_TITLES, rows, strict=False)),
            f"micro-batches {_join(schedule.directions) if both else schedule.micro_batches}",
            *(
                f"actor {actor}: {_join(row)}".rstrip()
                for actor, row in enumerate(schedule.actions)
            ),
            "",
        ]
    )


def load(text: str) -> Schedule:
    """The inverse of `dump`. Says nothing about the schedule's worth: `validate` does."""
    fields: dict[str, str] = {}
    actions: list[tuple[Action, ...]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("actor "):
            head, _, body = line.partition(":")
            if head != f"actor {len(actions)}":
                raise ScheduleError(f"{head!r} stands where actor {len(actions)} is expected")
            actions.append(tuple(map(Action.parse, body.split())))
        else:
            key, _, fields[key] = line.partition(" ")
    unknown = fields.keys() - {"schedule", "micro-batches", *_TITLES}
    missing = {"schedule", "micro-batches", "stages"} - fields.keys()
    if unknown or missing:
        raise ScheduleError(
            f"a schedule as text has lines schedule, stages and micro-batches: "
            f"missing {sorted(missing)}, unknown {sorted(unknown)}"
        )
    placement = Placement(tuple(_numbers(fields[t]) for t in _TITLES if t in fields))
    counts = _numbers(fields["micro-batches"])
    if placement.directions == 1 and len(counts) != 1:
        raise ScheduleError(f"{fields['micro-batches']!r} should be the number of micro-batches")
    directions = counts if placement.directions == 2 else (0,) * counts[0]
    return Schedule(fields["schedule"], placement, directions, tuple(actions))


_TITLES = ("stages", "mirrored")


def _join(things: tuple[object, ...]) -> str:
    return " ".join(map(str, things))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split()))
    except ValueError:
        raise ScheduleError(f"{text!r} should be numbers") from None
