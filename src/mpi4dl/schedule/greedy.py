"""Schedules by rule of thumb: whenever an actor is free, it takes the best of what it could do.

For the schedules that have no closed form. What comes out can always be run, because it was run
here first: with forwards, input parts and weight parts of length 1, and backwards of length 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from ..errors import ScheduleError
from .action import Action, Kind, completes, needs
from .placement import Placement

Preference = Callable[[Action], tuple[int, ...]]
"""Among the actions that an actor could start, the one with the smallest value goes first."""

Room = Callable[[Action, Counter[int]], bool]
"""Whether a forward may start, given how many activations the actor holds in each direction."""


def greedy(
    placement: Placement,
    directions: Sequence[int],
    kinds: Sequence[Kind],
    preference: Preference,
    room: Room = lambda forward, live: True,
) -> tuple[tuple[Action, ...], ...]:
    """The list of every actor, with these kinds of actions for every micro-batch and stage."""
    actors = [
        _Actor(placement.held(a), directions, kinds, preference) for a in range(placement.actors)
    ]
    finished: set[Action] = set()
    running: list[tuple[int, int, Action]] = []  # a heap of (stop, actor, action)
    idle = set(range(placement.actors))
    now = 0
    while any(actor.todo for actor in actors):
        for number in sorted(idle):
            action = actors[number].start(finished, placement.stages, room)
            if action is not None:
                length = 2 if action.kind is Kind.BACKWARD else 1
                heappush(running, (now + length, number, action))
                idle.discard(number)
        if not running:
            raise ScheduleError("no order was found: the actors hold too few activations")
        now = running[0][0]
        while running and running[0][0] == now:
            _, number, action = heappop(running)
            finished.update(completes(action))
            idle.add(number)
    return tuple(tuple(actor.done) for actor in actors)


class _Actor:
    """What one actor has done, has still to do (best first), and holds."""

    def __init__(
        self,
        held: Sequence[tuple[int, int]],
        directions: Sequence[int],
        kinds: Sequence[Kind],
        preference: Preference,
    ) -> None:
        self.done: list[Action] = []
        self.live: Counter[int] = Counter()
        self.todo = sorted(
            (
                Action(kind, stage, micro_batch, direction)
                for direction, stage in held
                for micro_batch, travels in enumerate(directions)
                if travels == direction
                for kind in kinds
            ),
            key=preference,
        )

    def start(self, finished: set[Action], stages: int, room: Room) -> Action | None:
        for action in self.todo:
            full = action.kind is Kind.FORWARD and not room(action, self.live)
            if not full and finished.issuperset(needs(action, stages)):
                self.todo.remove(action)
                self.done.append(action)
                self.live[action.direction] += activations(action)
                return action
        return None


def activations(action: Action) -> int:
    """How many more activations an actor holds after an action: kept until the last gradient."""
    if action.kind is Kind.FORWARD:
        return 1
    return -1 if action.kind in (Kind.BACKWARD, Kind.WEIGHT) else 0
