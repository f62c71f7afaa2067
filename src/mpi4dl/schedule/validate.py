"""Proof, before anything is launched, that a schedule does its work and cannot wait for ever.

The lowered lists are played under the hardest conditions there are: one action after the other,
and every message waits until both ends stand before it (see `lowering`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..errors import ScheduleError
from .action import Action, Kind, activations, completes
from .lowering import Program, lower
from .rendezvous import rendezvous
from .schedule import Schedule


@dataclass(frozen=True)
class Report:
    """What a valid schedule asks of each actor."""

    schedule: str
    peak_live: tuple[int, ...]
    """Most activations held at once; one is what one micro-batch leaves behind on one stage."""
    peak_received: tuple[int, ...]
    """Most messages that may have arrived and not been used yet."""
    sent: tuple[int, ...]
    """Messages sent in a step."""
    stages_per_actor: float

    @property
    def peak_micro_batches(self) -> float:
        """The most of all actors, in the published unit: a micro-batch on all stages of an actor.

        All stages of one direction, that is: in a bidirectional pipeline, an actor has as many
        activations as in the ordinary one, and twice the weights.
        """
        return max(self.peak_live) / self.stages_per_actor

    def __str__(self) -> str:
        def row(name: str, numbers: Iterable[int]) -> str:
            return f"  {name:<20}" + " ".join(f"{n:>4}" for n in numbers)

        return "\n".join(
            [
                self.schedule,
                row("actor", range(len(self.peak_live))),
                row("live activations", self.peak_live),
                row("received, not used", self.peak_received),
                row("messages sent", self.sent),
            ]
        )


def validate(schedule: Schedule, program: Program | None = None) -> Report:
    """Check everything, and say what it costs; what is wrong is a ScheduleError with the culprit.

    `program` is what will be executed, if it is not what `lower` makes of the schedule.
    """
    _check_work(schedule)
    program = program or lower(schedule)
    lists = program.actions
    for actor, (planned, listed) in enumerate(zip(schedule.actions, lists, strict=True)):
        computed = tuple(action for action in listed if action.kind.computes)
        if computed != planned:
            raise ScheduleError(
                f"{schedule.name}: the program of actor {actor} computes {_text(computed)}; "
                f"the schedule says {_text(planned)}"
            )
    rendezvous(lists, schedule.stages)
    return Report(
        str(schedule),
        tuple(_peak(map(activations, actions)) if schedule.trains else 0 for actions in lists),
        tuple(_peak(_arrivals(actions)) for actions in lists),
        tuple(sum(action.kind.sends for action in actions) for actions in lists),
        schedule.placement.stages_per_actor,
    )


def _check_work(schedule: Schedule) -> None:
    """Every micro-batch passes every stage of its direction once, on the actor that has it."""
    kinds = (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT) if schedule.trains else (Kind.FORWARD,)
    missing = {
        Action(kind, stage, micro_batch, direction): None
        for micro_batch, direction in enumerate(schedule.directions)
        for stage in range(schedule.stages)
        for kind in kinds
    }
    expected = set(missing)
    for actor, action in schedule:
        who = f"{schedule.name}: actor {actor} has {action}"
        if not action.kind.computes:
            raise ScheduleError(f"{who}; communication is not planned but made, by lower()")
        if not expected.issuperset(completes(action)):
            raise ScheduleError(f"{who}, which belongs to no micro-batch and stage that there is")
        if schedule.placement.actor(action) != actor:
            host = schedule.placement.actor(action)
            raise ScheduleError(f"{who}, and the stage is on actor {host}")
        for done in completes(action):
            if done not in missing:
                raise ScheduleError(f"{who}, and {done} is done twice")
            del missing[done]
    for action in missing:
        host = schedule.placement.actor(action)
        raise ScheduleError(f"{schedule.name}: actor {host} lacks {action}")


def _arrivals(actions: Sequence[Action]) -> Iterable[int]:
    """Plus one for every receive, minus one for every received input that an action uses."""
    received: set[Action] = set()
    for action in actions:
        if action.kind.receives:
            received.add(action)
            yield 1
        elif action.kind.computes:
            used = {action.at(Kind.RECEIVE_FORWARD)}
            if action.kind is not Kind.FORWARD:
                used = {action.at(Kind.RECEIVE_BACKWARD)}
            yield -len(used & received)
            received -= used


def _peak(changes: Iterable[int]) -> int:
    return max(accumulate(changes, initial=0))


def _text(actions: Sequence[Action]) -> str:
    return " ".join(map(str, actions)) or "nothing"
