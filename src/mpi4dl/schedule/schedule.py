"""A schedule: for every actor, what it computes and in which order. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..errors import ScheduleError
from .action import Action, Kind, completes
from .placement import Placement


@dataclass(frozen=True)
class Schedule:
    """`actions[actor]` is the list that the actor works off, in order, from first to last.

    `directions[i]` is the direction in which micro-batch i travels; micro-batches are numbered
    through both directions. Communication is not part of a schedule; lowering adds it.
    """

    name: str
    placement: Placement
    directions: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        if len(self.actions) != self.actors:
            raise ScheduleError(
                f"{self.name}: {len(self.actions)} lists for {self.actors} actors; every actor "
                "needs one, if only an empty one"
            )

    @property
    def actors(self) -> int:
        return self.placement.actors

    @property
    def stages(self) -> int:
        return self.placement.stages

    @property
    def micro_batches(self) -> int:
        return len(self.directions)

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward at all; evaluation has none and keeps no activations."""
        return any(action.kind is not Kind.FORWARD for _, action in self)

    @cached_property
    def source(self) -> dict[Action, tuple[int, Action]]:
        """Who does what, in the terms of `needs`: `source[I]` may be a full backward."""
        return {done: (actor, action) for actor, action in self for done in completes(action)}

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        """All actions with their actors, one actor after the other."""
        for actor, actions in enumerate(self.actions):
            for action in actions:
                yield actor, action

    def __str__(self) -> str:
        return (
            f"{self.name}: {counted(self.stages, 'stage')} on {counted(self.actors, 'actor')}, "
            f"{counted(self.micro_batches, 'micro-batch', 'es')}"
        )


def counted(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{plural if count != 1 else ''}"
