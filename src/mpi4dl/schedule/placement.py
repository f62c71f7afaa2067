"""Which actor has which stage.

    loop, 2 stages each      vee                  mirrored(loop)
    actor 0: 0 3             actor 0: 0 5         actor 0: 0 and 2'
    actor 1: 1 4             actor 1: 1 4         actor 1: 1 and 1'
    actor 2: 2 5             actor 2: 2 3         actor 2: 2 and 0'

An actor is a position in the pipeline, not a rank: the tiles of a spatial stage are several ranks
that all run the actor's list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import ScheduleError
from .action import Action


@dataclass(frozen=True)
class Placement:
    """`table[direction][stage]` is an actor."""

    table: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.table or not self.table[0]:
            raise ScheduleError("a pipeline needs at least one stage")
        if len({len(row) for row in self.table}) != 1:
            lengths = [len(row) for row in self.table]
            raise ScheduleError(f"the directions have different numbers of stages: {lengths}")
        found = {actor for row in self.table for actor in row}
        if found != set(range(len(found))):
            raise ScheduleError(
                f"the stages lie on the actors {sorted(found)}: number them from 0, without gaps"
            )

    @property
    def directions(self) -> int:
        return len(self.table)

    @property
    def stages(self) -> int:
        return len(self.table[0])

    @cached_property
    def actors(self) -> int:
        return 1 + max(max(row) for row in self.table)

    @property
    def stages_per_actor(self) -> float:
        """In one direction; a whole number in every placement made here."""
        return self.stages / self.actors

    def actor(self, action: Action) -> int:
        return self.table[action.direction][action.stage]

    def hosts(self, stage: int) -> tuple[int, ...]:
        """The actors that hold a copy of the stage, each once, in rising order."""
        return tuple(sorted({row[stage] for row in self.table}))

    def held(self, actor: int) -> tuple[tuple[int, int], ...]:
        """The `(direction, stage)` pairs of an actor."""
        return tuple(
            (direction, stage)
            for direction, row in enumerate(self.table)
            for stage, host in enumerate(row)
            if host == actor
        )

    def mirrored(self) -> Placement:
        """With a second direction, in which actor a has what actor P - 1 - a has in the first."""
        (row,) = self.table
        return Placement((row, tuple(self.actors - 1 - actor for actor in row)))


def loop(actors: int, stages_per_actor: int = 1) -> Placement:
    """Stage s on actor s modulo P."""
    check_counts(actors=actors, stages_per_actor=stages_per_actor)
    return Placement((tuple(s % actors for s in range(actors * stages_per_actor)),))


def vee(actors: int) -> Placement:
    """Down and up again: stages s and 2P - 1 - s share an actor, the last lies with the first."""
    check_counts(actors=actors)
    return Placement(((*range(actors), *reversed(range(actors))),))


def check_counts(**counts: int) -> None:
    """Everything that is counted must be there at least once."""
    for name, count in counts.items():
        if count < 1:
            raise ScheduleError(f"{name} is {count}; it must be at least 1")
