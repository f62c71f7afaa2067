"""From settings to actors, and from actors to ranks."""

from __future__ import annotations

from ..comm.mesh import Mesh
from ..schedule import Placement, make_schedule
from .settings import Settings


def placement_of(settings: Settings) -> Placement:
    """Which actor has which stage. How many micro-batches there are makes no difference to it."""
    return make_schedule(
        settings.schedule,
        settings.split_size,
        micro_batches=1,
        stages_per_actor=settings.stages_per_actor,
        times=min(settings.times, 2),
    ).placement


def mesh_of(settings: Settings, placement: Placement) -> Mesh:
    """As many ranks for every actor as each of its stages has tiles; `plan_checks` saw to that."""
    (row, *_) = placement.table
    tiles = tuple(settings.tiles(row.index(actor)) for actor in range(placement.actors))
    return Mesh(tiles, placement.table, settings.replicas)
