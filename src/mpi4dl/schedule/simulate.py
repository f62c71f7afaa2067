"""When everything happens, if every action takes the time that it is said to take.

Every actor works off its list in order and starts an action as soon as it is free and what the
action needs has arrived. Messages cost latency and no actor's time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..errors import ScheduleError
from .action import Action, Kind, completes, needs
from .schedule import Schedule
from .timeline import Span, Timeline, render

Cost: TypeAlias = float | Sequence[float]
"""The same for every stage, or one number for each."""


def simulate(
    schedule: Schedule,
    *,
    forward: Cost = 1,
    backward: Cost = 2,
    input: Cost | None = None,
    weight: Cost | None = None,
    latency: float = 0,
) -> Timeline:
    """Play a schedule. Where `input` or `weight` is not given, it is half of `backward`.

    `latency` passes between the end of an action and the start of what needs its result on
    another actor.
    """
    half = backward / 2 if isinstance(backward, int | float) else [cost / 2 for cost in backward]
    costs = {
        Kind.FORWARD: forward,
        Kind.BACKWARD: backward,
        Kind.INPUT: half if input is None else input,
        Kind.WEIGHT: half if weight is None else weight,
    }

    def duration(action: Action) -> float:
        cost = costs[action.kind]
        return cost if isinstance(cost, int | float) else cost[action.stage]

    return _Play(schedule, duration, latency).run()


def shortest(*schedules: Schedule) -> Schedule:
    """The one with the smallest bubble; the first of them, if there are several."""
    return min(schedules, key=lambda schedule: simulate(schedule).length)


class _Play:
    """A wave over the lists: a turn runs one actor until it has to wait for another one."""

    def __init__(
        self, schedule: Schedule, duration: Callable[[Action], float], latency: float
    ) -> None:
        self.schedule = schedule
        self.duration = duration
        self.latency = latency
        self.spans: list[list[Span]] = [[] for _ in schedule.actions]
        self.finished: dict[Action, tuple[float, int]] = {}  # when, and on which actor
        self.sleepers: dict[Action, list[int]] = defaultdict(list)  # who waits for what

    def run(self) -> Timeline:
        awake = list(range(self.schedule.actors))
        while awake:
            awake.extend(self.turn(awake.pop()))
        timeline = Timeline(tuple(map(tuple, self.spans)))
        waits = [line for actor in range(self.schedule.actors) for line in self.waits(actor)]
        if waits:
            raise ScheduleError(
                f"{self.schedule.name} would wait for ever: {'; '.join(waits)}. "
                f"It would come this far:\n{render(timeline)}"
            )
        return timeline

    def turn(self, actor: int) -> list[int]:
        """Run one actor as far as it gets; who may go on because of it?"""
        woken = []
        for action in self.schedule.actions[actor][len(self.spans[actor]) :]:
            missing = self.missing(action)
            if missing is not None:
                self.sleepers[missing].append(actor)
                break
            start = self.start(actor, action)
            stop = start + self.duration(action)
            self.spans[actor].append(Span(action, start, stop))
            for done in completes(action):
                self.finished[done] = (stop, actor)
                woken += self.sleepers.pop(done, [])
        return woken

    def missing(self, action: Action) -> Action | None:
        wanted = needs(action, self.schedule.stages)
        return next((need for need in wanted if need not in self.finished), None)

    def start(self, actor: int, action: Action) -> float:
        free = self.spans[actor][-1].stop if self.spans[actor] else 0.0
        arrivals = (self.finished[need] for need in needs(action, self.schedule.stages))
        return max(free, *(stop + self.latency * (where != actor) for stop, where in arrivals), 0.0)

    def waits(self, actor: int) -> list[str]:
        """What an actor that is not through stands before, and why, in words."""
        rest = self.schedule.actions[actor][len(self.spans[actor]) :]
        if not rest:
            return []
        missing = self.missing(rest[0])
        assert missing is not None
        host, source = self.schedule.source.get(missing, (None, missing))
        if host is None:
            why = "which no actor does"
        elif host == actor:
            why = "which comes later in its own list"
        else:
            why = f"which actor {host} does"
        return [f"actor {actor} stands before {rest[0]} and waits for {source}, {why}"]
