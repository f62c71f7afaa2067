"""The best plan for a model on some devices: all dimensions at once, within a memory limit.

What is tried first are structures: how many stages, how many of them are cut into how many tiles,
how many replicas and micro-batches, with activations kept or computed again. The best of those are
then tried with all schedules, ways to slice, balances and fused halos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..errors import Mpi4dlError, PlanError
from ..pipeline.balance import balanced
from ..pipeline.plan import Plan
from .cluster import Cluster
from .costs import StageCosts
from .device import Device
from .prediction import Prediction, Setting, predicted
from .profile import Profile

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "gems", "chimera", "zb-chimera")
_METHODS = ("square", "vertical", "horizontal")


@dataclass(frozen=True)
class Wish:
    """What a plan is searched for."""

    batch: int
    devices: int
    memory: int
    """Bytes of each rank."""
    device: Device
    cluster: Cluster
    states: float = 1.0
    width: int = 4
    """How many of the best structures are refined."""

    @property
    def setting(self) -> Setting:
        return Setting(self.batch, self.device, self.cluster, self.states)


@dataclass(frozen=True)
class Refused:
    plan: Plan
    why: str
    peak: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Found:
    wish: Wish
    fitting: tuple[Prediction, ...]
    """The fastest first."""
    refused: tuple[Refused, ...]
    """Too large, or impossible."""
    tried: tuple[Prediction, ...] = field(repr=False, default=())

    @property
    def best(self) -> Prediction:
        if self.fitting:
            return self.fitting[0]
        raise PlanError(nothing_fits(self))

    @cached_property
    def front(self) -> tuple[Prediction, ...]:
        """Those that nothing tried is better than in both time and memory, whatever the limit."""
        front: list[Prediction] = []
        for each in sorted(self.tried, key=lambda p: (p.seconds, p.peak)):
            if not front or each.peak < front[-1].peak:
                front.append(each)
        return tuple(front)


def nothing_fits(found: Found) -> str:
    wish = found.wish
    if not found.tried:
        reasons = "; ".join(dict.fromkeys(r.why for r in found.refused[:3]))
        return f"no plan for {wish.devices} devices is possible: {reasons or 'use more devices'}"
    least = min(found.tried, key=lambda p: p.peak)
    return (
        f"no plan fits: the one that needs least, {least.plan!r}, needs "
        f"{least.peak / 1e9:.1f} GB a rank, and there are {wish.memory / 1e9:.1f} GB. Use more "
        "devices, smaller images, or devices with more memory"
    )


def search(profile: Profile, wish: Wish) -> Found:
    return _Search(profile, wish).found()


class _Search:
    def __init__(self, profile: Profile, wish: Wish) -> None:
        self.profile, self.wish = profile, wish
        self.made: dict[Plan, Prediction] = {}
        self.refused: dict[Plan, Refused] = {}

    def found(self) -> Found:
        for attempts in structures(self.wish, len(self.profile.layers)):
            for plan in attempts:  # each needs less memory than the one before, and more time
                if self._try([plan]):
                    break
        for changes, count in ((schedules, self.wish.width), (details, self.wish.width // 2)):
            for plan in self._promising()[:count]:
                self._try(changes(plan, self.wish))
        fitting = [p for p in self.made.values() if p.peak <= self.wish.memory]
        for plan, prediction in self.made.items():
            if prediction.peak > self.wish.memory:
                self.refused[plan] = Refused(
                    plan, _too_large(prediction, self.wish), prediction.peak, prediction.seconds
                )
        return Found(
            self.wish,
            tuple(sorted(fitting, key=lambda p: (p.seconds, p.peak))),
            tuple(sorted(self.refused.values(), key=lambda r: (r.peak == 0, r.seconds))),
            tuple(self.made.values()),
        )

    def _try(self, plans: Iterable[Plan]) -> bool:
        """Whether any of them fits."""
        fits = False
        for plan in plans:
            for complete in self._with_balances(plan):
                if complete not in self.made and complete not in self.refused:
                    try:
                        self.made[complete] = predicted(self.profile, complete, self.wish.setting)
                    except Mpi4dlError as error:
                        self.refused[complete] = Refused(complete, str(error))
                made = self.made.get(complete)
                fits |= made is not None and made.peak <= self.wish.memory
        return fits

    def _promising(self) -> list[Plan]:
        """The fastest that fit; and, lest all that fit be slow, those that nearly do."""
        limit = self.wish.memory
        fits = sorted((p for p in self.made.values() if p.peak <= limit), key=lambda p: p.seconds)
        near = [p for p in self.made.values() if limit < p.peak <= 1.5 * limit]
        near.sort(key=lambda p: p.seconds)
        if not fits:
            near = sorted(self.made.values(), key=lambda p: p.peak)
        return [p.plan for p in (*fits[: self.wish.width], *near[: self.wish.width // 2])]

    def _with_balances(self, plan: Plan) -> Iterator[Plan]:
        """By time, by memory, and by both."""
        if plan.balance is not None or plan.split_size == 1:
            yield replace(plan, balance=plan.balance or (len(self.profile.layers),))
            return
        speeds = [plan.tiles(stage) for stage in range(plan.split_size)]
        found: dict[tuple[int, ...], None] = {}
        for costs in (self._times, self._bytes, self._both):
            found[balanced(costs, plan.split_size, speeds)] = None
        for balance in found:
            yield replace(plan, balance=balance)

    @cached_property
    def _times(self) -> tuple[float, ...]:
        device = self.wish.device

        def seconds(costs: StageCosts) -> float:
            parts = (costs.operators(None), costs.operators(0))
            return sum(device.seconds(op) * n for part in parts for op, n in part.items())

        return self.profile.layer_costs(seconds)

    @cached_property
    def _bytes(self) -> tuple[float, ...]:
        return self.profile.layer_costs(lambda costs: float(costs.kept + costs.entrance + 1))

    @cached_property
    def _both(self) -> tuple[float, ...]:
        times, sizes = sum(self._times) or 1.0, sum(self._bytes)
        return tuple(t / times + b / sizes for t, b in zip(self._times, self._bytes, strict=True))


def _too_large(prediction: Prediction, wish: Wish) -> str:
    return f"needs {prediction.peak / 1e9:.1f} GB a rank of {wish.memory / 1e9:.1f} GB"


# ── what there is to try ─────────────────────────────────────────────────────────────────────────


def structures(wish: Wish, layers: int) -> Iterator[list[Plan]]:
    """Each with as many replicas as there are devices for, with 1F1B and square tiles: with few
    micro-batches, with more, and with activations that are computed again."""
    for base in _bases(wish.devices, layers):
        try:
            ranks = Plan(**base).world_size  # type: ignore[arg-type]
        except PlanError:
            continue
        replicas = min(wish.devices // ranks, wish.batch)
        if replicas < 1:
            continue
        each, stages = wish.batch // replicas, int(str(base["split_size"]))
        few = 1 if stages == 1 else min(each, 2 * stages)
        ways = dict.fromkeys([(few, False), (each, False), (few, True), (each, True)])
        yield [
            Plan(
                **base,  # type: ignore[arg-type]
                replicas=replicas,
                parts=parts,
                schedule="1f1b",
                checkpoint_activations=again,
            )
            for parts, again in ways
        ]


def _bases(devices: int, layers: int) -> Iterator[dict[str, object]]:
    """Stages of single ranks, stages that share the batch, and stages of which some are tiles."""
    most = min(devices, layers)
    for stages in sorted({*_doubling(1, min(most, 32)), *(n for n in (3, 5, 6) if n <= most)}):
        for local in sorted({1, devices // stages}):
            yield {"split_size": stages, "local_dp": local}
        for tiles in _doubling(2, devices):
            for spatial in sorted({1, stages} if stages < 4 else {stages // 2, stages}):
                left = devices - tiles * spatial
                whole = stages - spatial
                if left < whole:
                    continue
                yield {
                    "split_size": stages,
                    "num_spatial_parts": tiles,
                    "spatial_size": spatial,
                    "local_dp": tiles if whole and tiles * whole <= left else 1,
                }


def _doubling(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def schedules(plan: Plan, wish: Wish) -> Iterator[Plan]:
    """The same with every schedule, and with other numbers of micro-batches."""
    most = wish.batch // plan.replicas // plan.times
    changes: list[Callable[[], Plan]] = [
        lambda p=parts: replace(plan, parts=p)  # type: ignore[misc]
        for parts in (plan.parts // 2, plan.parts * 2)
        if 1 <= parts <= most
    ]
    if plan.split_size > 1:
        for name in SCHEDULES:
            changes.append(lambda s=name: _with_schedule(plan, s))  # type: ignore[misc]
    yield from _possible(changes, wish)


def details(plan: Plan, wish: Wish) -> Iterator[Plan]:
    """The same sliced in other ways, with fused halos, and with activations computed again."""
    changes: list[Callable[[], Plan]] = []
    if plan.spatial_size:
        for method in _METHODS:
            changes.append(lambda m=method: replace(plan, slice_method=m))  # type: ignore[misc]
        changes.append(lambda: replace(plan, halo_d2=True, fused_layers=2))
    for again in (False, True, 2):
        changes.append(lambda a=again: replace(plan, checkpoint_activations=a))  # type: ignore[misc]
    yield from _possible(changes, wish)


def _possible(changes: Iterable[Callable[[], Plan]], wish: Wish) -> Iterator[Plan]:
    for change in changes:
        try:
            other = change()
            if other.world_size <= wish.devices:
                yield other
        except Mpi4dlError:
            continue


def _with_schedule(plan: Plan, schedule: str) -> Plan:
    """The same ranks; schedules with two stages a rank cut the model finer."""
    stages = plan.split_size
    if schedule in ("interleaved", "zb-v") and plan.schedule not in ("interleaved", "zb-v"):
        stages = plan.split_size * (1 if plan.spatial_size else 2)
    balance = plan.balance if stages == plan.split_size else None
    return replace(plan, schedule=schedule, split_size=stages, balance=balance)
