"""What the schedules cost, and what they look like.

    python -m mpi4dl.schedule 4 8             all of them, on 4 actors with 8 micro-batches
    python -m mpi4dl.schedule 4 8 1f1b        one of them: its drawing, its lists, its report
    python -m mpi4dl.schedule mine.txt        one from a file
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import ScheduleError
from .lowering import lower
from .registry import SCHEDULES, make_schedule
from .schedule import Schedule
from .simulate import simulate
from .text import load
from .timeline import render
from .validate import validate


def on_actors(name: str, actors: int, micro_batches: int) -> Schedule:
    """On so many actors, however many stages that makes; GEMS has batches of one micro-batch."""
    stages = actors * SCHEDULES[name].per_actor
    if name == "gems":
        return make_schedule(name, stages, 1, times=micro_batches)
    return make_schedule(name, stages, micro_batches)


def table(actors: int, micro_batches: int) -> str:
    """Bubble with backwards of twice and of once the length of forwards, memory, and messages."""
    lines = [
        "| schedule | stages | bubble | if backward = forward | live | weights | messages |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SCHEDULES:
        schedule = on_actors(name, actors, micro_batches)
        report = validate(schedule)
        cells = (
            f"`{name}`",
            schedule.stages,
            f"{simulate(schedule).bubble:.1%}",
            f"{simulate(schedule, backward=1).bubble:.1%}",
            f"{report.peak_micro_batches:g}",
            f"{schedule.placement.directions}×",
            max(report.sent),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def portrait(schedule: Schedule) -> str:
    report = validate(schedule)
    timeline = simulate(schedule)
    return (
        f"{report}\n  bubble {timeline.bubble:.1%}\n\n{render(timeline)}\n\n{lower(schedule)}"
    )


def main(arguments: Sequence[str]) -> str:
    if len(arguments) == 1 and not arguments[0].isdecimal():
        return portrait(load(Path(arguments[0]).read_text(encoding="utf-8")))
    if len(arguments) not in (2, 3) or not all(map(str.isdecimal, arguments[:2])):
        raise ScheduleError(f"expected ACTORS MICRO_BATCHES [NAME], or a file\n\n{__doc__}")
    actors, micro_batches = map(int, arguments[:2])
    if len(arguments) == 2:
        return table(actors, micro_batches)
    if arguments[2] not in SCHEDULES:
        make_schedule(arguments[2], actors, micro_batches)  # says which there are
    return portrait(on_actors(arguments[2], actors, micro_batches))


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except ScheduleError as error:
        sys.exit(str(error))
