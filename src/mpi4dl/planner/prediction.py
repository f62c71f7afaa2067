"""What a plan would do: time, memory of each rank, messages on each link. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from ..errors import PlanError
from ..pipeline.arrangement import Signature, arriving, crossing
from ..pipeline.plan import Plan
from ..schedule import Action, Kind, Program, Timeline, lower
from .cluster import Cluster
from .costs import StageCosts
from .device import Device
from .memory import Held, Usage, highest
from .profile import Profile
from .simulator import Worker, play

_PIECE = 2**22
"""Bytes of a gradient that shared memory reduces at once."""


@dataclass(frozen=True)
class Setting:
    """What a plan is judged for, beside the model."""

    batch: int
    """Samples of a step, over all replicas and directions."""
    device: Device
    cluster: Cluster
    states: float = 1.0
    """What the optimizer keeps, in copies of the parameters: 0 for SGD, 1 with momentum, 2 for
    Adam."""


@dataclass(frozen=True)
class Prediction:
    plan: Plan
    samples: int
    seconds: float
    """Of a step."""
    timeline: Timeline = field(repr=False)
    """Of every worker."""
    ranks: tuple[tuple[int, ...], ...] = field(repr=False)
    """Which ranks of the first replica are the same worker."""
    usage: tuple[Usage, ...] = field(repr=False)
    """Of every worker."""
    links: Mapping[str, float] = field(repr=False, default_factory=dict)
    """Bytes that the busiest rank sends in a step, by what about."""
    parts: Mapping[str, float] = field(repr=False, default_factory=dict)
    """Seconds of the busiest rank, by what for."""

    @property
    def images_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def bubble(self) -> float:
        return self.timeline.bubble

    @property
    def peak(self) -> int:
        """Bytes, of the rank that needs most."""
        return max(usage.total for usage in self.usage)

    def peak_of(self, rank: int) -> int:
        own = rank % sum(map(len, self.ranks))
        return next(
            usage.total for usage, ranks in zip(self.usage, self.ranks, strict=True) if own in ranks
        )


def predicted(profile: Profile, plan: Plan, setting: Setting) -> Prediction:
    """Of a plan with a balance."""
    if plan.precision != "fp32":
        raise PlanError(f"precision is {plan.precision}: predictions are made for fp32 only")
    return _Prediction(profile, plan, setting).made()


class _Prediction:
    def __init__(self, profile: Profile, plan: Plan, setting: Setting) -> None:
        self.plan, self.setting = plan, setting
        self.device, self.cluster = setting.device, setting.cluster.for_ranks(plan.world_size)
        shares = plan.split_batch(setting.batch)
        self.micro = max(max(share) for share in shares)
        self.stages = profile.stages(plan, self.micro)
        self.signature = Signature(self.micro, len(profile.image) - 1, True, ())
        self.program: Program = lower(plan.make_schedule())
        self.tiles = [plan.mesh.ranks(0, 0, stage) for stage in range(plan.split_size)]
        self.links: dict[str, float] = {"tiles": 0.0, "stages": 0.0, "gradients": 0.0}

    def made(self) -> Prediction:
        workers, ranks, held = self._workers()
        timeline = play(
            workers,
            self.plan.split_size,
            self._duration,
            self._message,
            self.cluster.cores,
        )
        seconds, tail = self._end(workers, held, timeline)
        usage = tuple(self._usage(pairs, timeline) for pairs in held)
        busiest = max(timeline.busy, default=0.0)
        parts = {"compute": busiest, "waiting": timeline.makespan - busiest, **tail}
        return Prediction(
            self.plan,
            self.setting.batch,
            seconds,
            timeline,
            ranks,
            usage,
            self._traffic(held),
            parts,
        )

    # ── who ──────────────────────────────────────────────────────────────────────────────────

    def _workers(
        self,
    ) -> tuple[list[Worker], tuple[tuple[int, ...], ...], list[tuple[tuple[int, int], ...]]]:
        mesh = self.plan.mesh
        alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for rank in range(mesh.ranks_of_replica):
            alike.setdefault(mesh.held(rank), []).append(rank)
        workers = []
        for pairs, ranks in alike.items():
            nodes: dict[int, int] = {}
            for replica in range(mesh.replicas):
                for rank in ranks:
                    node = self.cluster.node(replica * mesh.ranks_of_replica + rank)
                    nodes[node] = nodes.get(node, 0) + 1
            actions = tuple(a for a in self.program.part(pairs) if a.kind.computes)
            workers.append(Worker(actions, nodes))
        return workers, tuple(map(tuple, alike.values())), list(alike)

    # ── how long ─────────────────────────────────────────────────────────────────────────────

    def _duration(self, action: Action) -> float:
        key = (action.kind, action.stage)
        if key not in self._durations:
            self._durations[key] = self._computed(*key)
        return self._durations[key]

    @cached_property
    def _durations(self) -> dict[tuple[Kind, int], float]:
        return {}

    def _computed(self, kind: Kind, stage: int) -> float:
        costs = self.stages[stage]
        if kind is Kind.FORWARD:
            return self._work(costs, None, stage) + self._copying(stage, True)
        if kind is Kind.BACKWARD:
            return self._work(costs, 0, stage) + self._copying(stage, False)
        if kind is (Kind.WEIGHT if costs.later else Kind.INPUT):
            return self._work(costs, 0, stage) + self._copying(stage, False)
        return self._work(costs, 1, stage) if costs.splits else 0.0

    def _work(self, costs: StageCosts, part: int | None, stage: int) -> float:
        operators = costs.operators(part)
        slower = self.cluster.alone if self.plan.world_size == 1 else 1.0
        total = slower * sum(self.device.seconds(op) * n for op, n in operators.items())
        tiled = len(self.tiles[stage]) > 1
        each = self.device.tile_python if tiled else self.device.python
        total += each * sum(operators.values())
        total += self.device.fault * self._fresh(costs, part)
        if tiled:
            total *= self.cluster.crowded if self._crowded else self.cluster.abreast
        return total + self._talking(costs, part, stage)

    def _fresh(self, costs: StageCosts, part: int | None) -> int:
        """Bytes that come from the system: in large blocks, or because what a micro-batch keeps was
        given back after the one before."""
        fetched = costs.fetched(part)
        return max(fetched, costs.kept) if part is None else fetched

    def _talking(self, costs: StageCosts, part: int | None, stage: int) -> float:
        ranks, total = self.tiles[stage], 0.0
        late = self.cluster.crowded_latency if self._crowded else 0.0
        for (kind, size), count in costs.talks(part).items():
            if kind == "exchange":
                total += count * (self.cluster.exchange(size, ranks) + late)
            else:
                total += count * (self.cluster.reduction(size, ranks) + late)
        return total

    @cached_property
    def _crowded(self) -> bool:
        cores = self.cluster.cores
        return cores is not None and min(self.cluster.ranks_per_node, self.plan.world_size) > cores

    def _copying(self, stage: int, forward: bool) -> float:
        """Over shared memory ranks copy what they send and what they get."""
        if not self.cluster.copies:
            return 0.0
        into, out = self._crossed(stage - 1), self._crossed(stage)
        return (into + out) / self.cluster.inside.bandwidth

    def _message(self, source: Action, target: Action) -> float:
        first, second = sorted((source.stage, target.stage))
        ranks = (self.tiles[first][0], self.tiles[second][-1])
        link = self.cluster.link(ranks)
        size = 0.0 if self.cluster.copies else self._crossed(first)
        sharers = max(self.cluster.on(self.tiles[first]), self.cluster.on(self.tiles[second]))
        return link.seconds(size, sharers)

    def _crossed(self, stage: int) -> float:
        """Bytes of a micro-batch between a stage and the next: of the rank that has most of it."""
        if stage not in self._crossings:
            self._crossings[stage] = self._crossing(stage)
        return self._crossings[stage][0]

    def _sources(self, stage: int) -> int:
        """From how many ranks a rank of the stage gets its input."""
        if stage == 0 or self.tiles[stage] == self.tiles[stage - 1]:
            return 0
        self._crossed(stage - 1)
        return self._crossings[stage - 1][1]

    @cached_property
    def _crossings(self) -> dict[int, tuple[float, int]]:
        return {}

    def _crossing(self, stage: int) -> tuple[float, int]:
        if not 0 <= stage < self.plan.split_size - 1:
            return 0.0, 0
        if self.tiles[stage] == self.tiles[stage + 1]:
            return 0.0, 0
        sources, targets = len(self.tiles[stage]), len(self.tiles[stage + 1])
        out: dict[int, float] = {}
        into: dict[int, float] = {}
        most = 1
        for leaf in self.stages[stage].outgoing.tensors:
            lies = arriving(self.plan, stage + 1, leaf.shape, leaf.before, self.signature)
            moves = crossing(leaf.shape, leaf.before, sources, lies, targets)
            for rank in range(sources, sources + targets):
                found = [m for m in moves.incoming(rank) if m.source != rank]
                most = max(most, len(found))
                for message in found:
                    size = float(prod(message.box.shape) * leaf.dtype.itemsize)
                    out[message.source] = out.get(message.source, 0.0) + size
                    into[rank] = into.get(rank, 0.0) + size
        return max([*out.values(), *into.values(), 0.0]), most

    def _end(
        self,
        workers: Sequence[Worker],
        held: Sequence[tuple[tuple[int, int], ...]],
        timeline: Timeline,
    ) -> tuple[float, dict[str, float]]:
        ends, reducing, updating = [], 0.0, 0.0
        crowd = self._crowd(workers)
        for pairs, spans in zip(held, timeline.spans, strict=True):
            stages = sorted({stage for _, stage in pairs})
            took = sum(self._reduction(stage) for stage in stages) * crowd
            if self.cluster.overlap and len(stages) == 1 and spans:
                took = max(took * 0.05, took - spans[-1].duration)
            update = sum(self._update(stage) for stage in stages) * crowd
            stop = spans[-1].stop if spans else 0.0
            ends.append(stop + took + update)
            reducing, updating = max(reducing, took), max(updating, update)
        seconds = max(ends) + self.device.step * crowd
        return seconds, {"gradients": reducing, "optimizer": updating, "step": self.device.step}

    def _crowd(self, workers: Sequence[Worker]) -> float:
        """How many ranks share a core when all of them do something."""
        if self.cluster.cores is None:
            return 1.0
        nodes: dict[int, int] = {}
        for worker in workers:
            for node, count in worker.ranks.items():
                nodes[node] = nodes.get(node, 0) + count
        return max(1.0, max(nodes.values()) / self.cluster.cores)

    def _reduction(self, stage: int) -> float:
        copies, size = self.plan.mesh.copies(stage), self.stages[stage].gradients
        if len(copies) == 1:
            return 0.0
        flat = 2 * self.device.moved(2 * size) + self.device.fault * size
        return self.cluster.reduction(size, copies) + flat

    def _update(self, stage: int) -> float:
        size = self.stages[stage].gradients
        return (1 + 2 * self.setting.states) * self.device.moved(3 * size)

    # ── how much ─────────────────────────────────────────────────────────────────────────────

    def _highest(self, pairs: Sequence[tuple[int, int]]) -> Usage:
        lazy = self.cluster.copies
        held = {}
        for _, stage in pairs:
            last = stage == self.plan.split_size - 1
            held[stage] = Held(
                self.stages[stage],
                self._sources(stage),
                stage > 0,
                not last,
                not last and self.tiles[stage] != self.tiles[stage + 1],
                len(self.plan.mesh.copies(stage)) > 1,
            )
        return highest(self.program.part(pairs), held, lazy)

    def _usage(self, pairs: Sequence[tuple[int, int]], timeline: Timeline) -> Usage:
        stages = {stage for _, stage in pairs}
        size = sum(self.stages[stage].gradients for stage in stages)
        return replace(
            self._highest(pairs),
            parameters=size,
            optimizer=int(size * self.setting.states),
            transport=self._transport(pairs, timeline),
            runtime=self.device.runtime + self.device.workspace,
        )

    def _transport(self, pairs: Sequence[tuple[int, int]], timeline: Timeline) -> int:
        """Messages in shared memory are counted by who sends and by who reads them."""
        if not self.cluster.copies:
            return 0
        total = 0.0
        for stage in {stage for _, stage in pairs}:
            copies = len(self.plan.mesh.copies(stage))
            if copies > 1:
                total += self.stages[stage].gradients * (2 + (copies - 1) / copies * (copies > 2))
            classes: dict[int, int] = {}
            for part in (None, 0, 1):
                for (_, size), _ in self.stages[stage].talks(part).items():
                    kind = (size - 1).bit_length()
                    classes[kind] = max(classes.get(kind, 0), size)
            total += 4 * sum(classes.values())
        return int(total + self._under_way(pairs, timeline))

    def _under_way(self, pairs: Sequence[tuple[int, int]], timeline: Timeline) -> float:
        """The most that lies between stages at one time: what this rank sends and what it gets."""
        spans = {span.action: span for row in timeline.spans for span in row}
        total = 0.0
        own = set(pairs)
        for sending in (True, False):
            moments: dict[int, list[tuple[float, int]]] = {}
            for source, span in spans.items():
                for target in _targets(source, self.plan.split_size):
                    goal = spans.get(target) or spans.get(target.at(Kind.BACKWARD))
                    near, far = (source, target) if sending else (target, source)
                    if goal is None or (near.direction, near.stage) not in own:
                        continue
                    boundary = min(near.stage, far.stage)
                    if self.tiles[near.stage] != self.tiles[far.stage]:
                        moments.setdefault(boundary, []).extend([(span.stop, 1), (goal.start, -1)])
            for boundary, changes in moments.items():
                live = most = 0
                for _, change in sorted(changes, key=lambda c: (c[0], c[1])):
                    live += change
                    most = max(most, live)
                total += max(1, most) * self._crossed(boundary)
        return total

    def _traffic(self, held: Sequence[tuple[tuple[int, int], ...]]) -> dict[str, float]:
        tiles = stages = gradients = 0.0
        for pairs in held:
            own_tiles = own_stages = 0.0
            for action in self.program.part(pairs):
                if action.kind.sends:
                    first = min(action.stage, action.counterpart.stage)
                    own_stages += self._crossed(first)
                elif action.kind.computes:
                    part = None if action.kind is Kind.FORWARD else 0
                    part = 1 if action.kind is Kind.WEIGHT else part
                    talks = self.stages[action.stage].talks(part)
                    own_tiles += sum(size * count for (_, size), count in talks.items())
            reduced = {s for _, s in pairs if len(self.plan.mesh.copies(s)) > 1}
            own = sum(2 * self.stages[stage].gradients for stage in reduced)
            tiles, stages = max(tiles, own_tiles), max(stages, own_stages)
            gradients = max(gradients, own)
        return {"tiles": tiles, "stages": stages, "gradients": gradients}


def _targets(action: Action, stages: int) -> list[Action]:
    """Who waits for what an action sends."""
    if action.kind is Kind.FORWARD and action.stage < stages - 1:
        return [action.at(Kind.FORWARD, action.stage + 1)]
    if action.kind in (Kind.BACKWARD, Kind.INPUT) and action.stage > 0:
        return [action.at(Kind.INPUT, action.stage - 1)]
    return []
