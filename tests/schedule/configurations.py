"""Every schedule in every small configuration, for tests that ask the same of all of them."""

from __future__ import annotations

from functools import cache

from mpi4dl.schedule import SCHEDULES, Schedule, make_schedule

NAMES = tuple(SCHEDULES)


@cache
def of(name: str, actors: int, micro_batches: int) -> Schedule:
    """On so many actors, whatever the number of stages; GEMS has batches of one micro-batch."""
    stages = actors * SCHEDULES[name].per_actor
    if name == "gems":
        return make_schedule(name, stages, 1, times=micro_batches)
    return make_schedule(name, stages, micro_batches)
