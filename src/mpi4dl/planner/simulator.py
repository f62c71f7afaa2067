"""A step on a cluster: the engine's own lists, played with what actions and messages cost.

Ranks work off their lists in order. Tiles of a stage do the same at the same time, and replicas do
what the first one does: they are one worker, and thousands of ranks are a few workers.

Where a node has fewer cores than ranks that compute, all of them become slower alike, from moment
to moment: whoever waits leaves its core to the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from ..schedule import Action, Span, Timeline
from ..schedule.action import completes, needs

Duration = Callable[[Action], float]
Message = Callable[[Action, Action], float]
"""From the end of an action to the start of another that needs its result, on other ranks."""


@dataclass(frozen=True)
class Worker:
    """Ranks that all do the same: the tiles of a stage, in all replicas."""

    actions: tuple[Action, ...]
    """What it computes, in order. An action may belong to several workers, who do it together."""
    ranks: Mapping[int, int]
    """How many of them are on each node."""


def play(
    workers: Sequence[Worker],
    stages: int,
    duration: Duration,
    message: Message,
    cores: float | None = None,
) -> Timeline:
    """Spans of every worker. `cores`: of a node; None: one for each rank."""
    return _Play(workers, stages, duration, message, cores).run()


class _Play:
    def __init__(
        self,
        workers: Sequence[Worker],
        stages: int,
        duration: Duration,
        message: Message,
        cores: float | None,
    ) -> None:
        self.workers, self.stages = workers, stages
        self.duration, self.message, self.cores = duration, message, cores
        self.place = [0] * len(workers)
        self.free = [0.0] * len(workers)
        self.owners: dict[Action, list[int]] = defaultdict(list)
        for number, worker in enumerate(workers):
            for action in worker.actions:
                self.owners[action].append(number)
        self.finished: dict[Action, tuple[float, Action]] = {}
        self.spans: list[list[Span]] = [[] for _ in workers]
        self.sleepers: dict[Action, set[int]] = defaultdict(set)

    def run(self) -> Timeline:
        if self.cores is not None and self._demand() > self.cores:
            self._shared()
        else:
            self._alone()
        for number, worker in enumerate(self.workers):
            if self.place[number] < len(worker.actions):
                raise ScheduleError(f"worker {number} waits for ever before {self._head(number)}")
        return Timeline(tuple(map(tuple, self.spans)))

    def _demand(self) -> float:
        total: dict[int, int] = defaultdict(int)
        for worker in self.workers:
            for node, count in worker.ranks.items():
                total[node] += count
        return max(total.values(), default=0)

    def _head(self, worker: int) -> Action | None:
        actions = self.workers[worker].actions
        return actions[self.place[worker]] if self.place[worker] < len(actions) else None

    def _ready(self, worker: int) -> float | None:
        """When the worker's next action can start; None if that is not known yet."""
        action = self._head(worker)
        if action is None or any(self._head(owner) != action for owner in self.owners[action]):
            return None
        owners = self.owners[action]
        start = max(self.free[owner] for owner in owners)
        for need in needs(action, self.stages):
            found = self.finished.get(need)
            if found is None:
                self.sleepers[need].add(worker)
                return None
            stop, source = found
            away = owners != self.owners[source]
            start = max(start, stop + (self.message(source, action) if away else 0.0))
        return start

    def _finish(self, action: Action, start: float, stop: float) -> set[int]:
        """Who may go on because of it."""
        woken = set(self.owners[action])
        for owner in self.owners[action]:
            self.spans[owner].append(Span(action, start, stop))
            self.place[owner] += 1
            self.free[owner] = stop
            following = self._head(owner)
            if following is not None:
                woken.update(self.owners[following])
        for done in completes(action):
            self.finished[done] = (stop, action)
            woken |= self.sleepers.pop(done, set())
        return woken

    # ── a core for every rank ────────────────────────────────────────────────────────────────

    def _alone(self) -> None:
        awake = list(range(len(self.workers)))
        while awake:
            worker = awake.pop()
            start = self._ready(worker)
            if start is not None:
                action = self.workers[worker].actions[self.place[worker]]
                awake += self._finish(action, start, start + self.duration(action))

    # ── cores that are shared ────────────────────────────────────────────────────────────────

    def _shared(self) -> None:
        now = 0.0
        left: dict[Action, float] = {}
        begun: dict[Action, float] = {}
        waiting: dict[Action, float] = {}
        awake = set(range(len(self.workers)))
        while awake or left or waiting:
            for worker in sorted(awake):
                start, action = self._ready(worker), self._head(worker)
                if start is not None and action is not None and action not in left:
                    waiting[action] = start
            awake.clear()
            for action in [a for a, start in waiting.items() if start <= now + 1e-12]:
                del waiting[action]
                begun[action], left[action] = now, self.duration(action)
            speeds = self._speeds(list(left))
            ends = [now + rest / speeds[a] for a, rest in left.items()]
            if not ends and not waiting:
                return
            then = min([*ends, *waiting.values()])
            for action in left:
                left[action] -= (then - now) * speeds[action]
            now = then
            for action in [a for a, rest in left.items() if rest <= 1e-9]:
                del left[action]
                awake |= self._finish(action, begun[action], now)

    def _speeds(self, actions: Sequence[Action]) -> dict[Action, float]:
        busy: dict[int, int] = defaultdict(int)
        for action in actions:
            for node, count in self._nodes(action):
                busy[node] += count
        cores = self.cores or float("inf")
        return {
            action: min(min(1.0, cores / busy[node]) for node, _ in self._nodes(action))
            for action in actions
        }

    def _nodes(self, action: Action) -> list[tuple[int, int]]:
        return [pair for owner in self.owners[action] for pair in self.workers[owner].ranks.items()]
