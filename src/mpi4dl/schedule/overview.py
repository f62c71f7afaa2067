"""What the schedules cost, side by side and one by one, as text."""

from __future__ import annotations

from .lowering import lower
from .registry import SCHEDULES, make_schedule, named
from .schedule import Schedule
from .simulate import simulate
from .timeline import render
from .validate import validate


def on_actors(name: str, actors: int, micro_batches: int) -> Schedule:
    """On so many actors, however many stages that makes; GEMS has batches of one micro-batch."""
    stages = actors * named(name).per_actor
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
    return f"{report}\n  bubble {timeline.bubble:.1%}\n\n{render(timeline)}\n\n{lower(schedule)}"
