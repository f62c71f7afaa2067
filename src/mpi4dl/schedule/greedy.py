"""Schedules by rule of thumb: whenever an actor is free, it takes the best of what it could do.

For the schedules that have no closed form. What comes out can always be run, because it was run
here first: with forwards, input parts and weight parts of length 1, and backwards of length 2.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from ..errors import ScheduleError
from .action import Action, Kind, activations, completes, needs
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
    work = [
        Action(kind, stage, micro_batch, direction)
        for micro_batch, direction in enumerate(directions)
        for stage in range(placement.stages)
        for kind in kinds
    ]
    agenda = _Agenda(placement, work, room)
    lists: list[list[Action]] = [[] for _ in range(placement.actors)]
    everybody = set(range(placement.actors))
    busy: list[tuple[int, int]] = []  # a heap of (until, actor)
    now = 0
    while True:
        for actor in sorted(everybody - {actor for _, actor in busy}):
            action = agenda.take(actor, preference)
            if action is not None:
                lists[actor].append(action)
                heappush(busy, (now + 1 + (action.kind is Kind.BACKWARD), actor))
        if not busy:
            break
        now = busy[0][0]
        while busy and busy[0][0] == now:
            agenda.finish(lists[heappop(busy)[1]][-1])
    if sum(map(len, lists)) < len(work):
        raise ScheduleError("no order was found: the actors hold too few activations")
    return tuple(map(tuple, lists))


class _Agenda:
    """What could be started, and what becomes possible when something is finished."""

    def __init__(self, placement: Placement, work: Sequence[Action], room: Room) -> None:
        self.placement = placement
        self.room = room
        self.live: list[Counter[int]] = [Counter() for _ in range(placement.actors)]
        self.ready: list[list[Action]] = [[] for _ in range(placement.actors)]
        self.missing: dict[Action, int] = {}
        self.unlocks: dict[Action, list[Action]] = defaultdict(list)
        for action in work:
            wanted = needs(action, placement.stages)
            self.missing[action] = len(wanted)
            for need in wanted:
                self.unlocks[need].append(action)
            if not wanted:
                self.ready[placement.actor(action)].append(action)

    def take(self, actor: int, preference: Preference) -> Action | None:
        live, ready = self.live[actor], self.ready[actor]
        could = [a for a in ready if a.kind is not Kind.FORWARD or self.room(a, live)]
        if not could:
            return None
        action = min(could, key=preference)
        ready.remove(action)
        live[action.direction] += activations(action)
        return action

    def finish(self, action: Action) -> None:
        for done in completes(action):
            for waiting in self.unlocks[done]:
                self.missing[waiting] -= 1
                if not self.missing[waiting]:
                    self.ready[self.placement.actor(waiting)].append(waiting)
