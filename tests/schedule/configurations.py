"""Every schedule in every small configuration, for tests that ask the same of all of them."""

from __future__ import annotations

from functools import cache

from mpi4dl.schedule import SCHEDULES
from mpi4dl.schedule.overview import on_actors

NAMES = tuple(SCHEDULES)

of = cache(on_actors)
