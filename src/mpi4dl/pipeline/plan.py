"""The plan: who trains what. Validated when it is made, before there is any process group."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from ..comm.mesh import Mesh
from ..errors import PlanError
from ..geometry import Layout
from ..schedule import Placement, Schedule, forward_only, make_schedule
from ..schedule.schedule import counted
from .near import near
from .plan_checks import check
from .plan_text import plan_text
from .ranks import mesh_of, placement_of
from .settings import Settings, StageKind


@dataclass(frozen=True, repr=False)
class Plan(Settings):
    """Who trains what: a model's stages, tiles, micro-batches, directions and replicas on ranks.

        plan = mpi4dl.Plan(split_size=3, num_spatial_parts=(4, 2), parts=4, schedule="1f1b")
        print(plan)                                # what runs where, as a table and a picture
        plan.check_world(7)                        # 4 + 2 + 1 = 7

    The words are those of the original command line; docs/plans.md explains them. Lists may be
    written as tuples, as lists or as text ("4,2"). What cannot be is a `PlanError` at once.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)

    # ── ranks ────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def placement(self) -> Placement:
        """Which actor has which stage."""
        return placement_of(self)

    @cached_property
    def mesh(self) -> Mesh:
        """Which rank has which tile of which stage."""
        return mesh_of(self, self.placement)

    @property
    def world_size(self) -> int:
        """All ranks: with one stage on each actor, the original's split_size + Σ parts -
        spatial_size + (split_size - spatial_size)·(local_dp - 1), times the replicas."""
        return self.mesh.size

    def check_world(self, ranks: int) -> None:
        """Refuse any other number of ranks than the plan needs."""
        if ranks == self.world_size:
            return
        others = near(self, ranks)
        instead = f", or plan for {ranks} with {' or '.join(others)}" if others else ""
        raise PlanError(
            f"this plan is for {counted(self.world_size, 'rank')} ({self.sum_of_ranks}), and there "
            f"{'is' if ranks == 1 else 'are'} {ranks}: start {self.world_size}{instead}"
        )

    @property
    def sum_of_ranks(self) -> str:
        """`4 + 1 = 5`: the ranks of each position in the pipeline, and of all replicas."""
        tiles = self.mesh.tiles
        if len(tiles) == self.replicas == 1:
            return str(self.world_size)
        terms = " + ".join(map(str, tiles))
        if self.replicas > 1:
            terms = f"{self.replicas} × " + (f"({terms})" if len(tiles) > 1 else terms)
        return f"{terms} = {self.world_size}"

    # ── order ────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _schedule(self) -> Schedule:
        return make_schedule(
            self.schedule,
            self.split_size,
            self.parts,
            stages_per_actor=self.stages_per_actor,
            times=self.times,
        )

    def make_schedule(self) -> Schedule:
        """Of the micro-batches of one replica, `times` batches of `parts` each. Made once."""
        return self._schedule

    def forward_schedule(self, micro_batches: int | None = None) -> Schedule:
        """Evaluation, with the weights where training has them; of as many micro-batches, too."""
        count = self.parts * self.times if micro_batches is None else micro_batches
        return forward_only(self.placement, count)

    # ── data ─────────────────────────────────────────────────────────────────────────────────

    @property
    def micro_batches(self) -> int:
        """Of a step, over all replicas."""
        return self.replicas * self.times * self.parts

    def check_batch(self, samples: int) -> None:
        """Refuse a step with fewer samples than micro-batches. More, also unevenly, is fine."""
        if samples < self.micro_batches:
            product = f"replicas {self.replicas} × times {self.times} × parts {self.parts}"
            parts = samples // (self.replicas * self.times)
            fewer = f", or parts {parts}" if parts else ""
            raise PlanError(
                f"a step has {counted(samples, 'sample')}, and the plan makes {self.micro_batches} "
                f"micro-batches of it ({product}): use at least {self.micro_batches} samples{fewer}"
            )

    def split_batch(self, samples: int) -> tuple[tuple[int, ...], ...]:
        """`[replica][micro-batch]`: how many samples each has, nearly equal, larger ones first."""
        self.check_batch(samples)
        count = self.times * self.parts
        return tuple(nearly_equal(n, count) for n in nearly_equal(samples, self.replicas))

    def layout(self, stage: int, size: tuple[int, ...]) -> Layout:
        """Who of the stage's ranks, in the order of its tiles, has which part of a tensor.

        `size` begins with the batch and ends with the image: `(N, H, W)`, or a whole shape. A
        spatial stage cuts the image, one with `local_dp` the batch.
        """
        return _layout(self, stage, tuple(size))

    # ── text ─────────────────────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        """Only what was decided, in the words of the call."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        chosen = (f"{f.name}={value!r}" for f, value in values if value != f.default)
        return f"Plan({', '.join(chosen)})"

    def __str__(self) -> str:
        return plan_text(self, self.mesh, self.sum_of_ranks)


@lru_cache(maxsize=4096)
def _layout(plan: Plan, stage: int, size: tuple[int, ...]) -> Layout:
    kind = plan.kind(stage)
    if kind is StageKind.SPATIAL:
        return Layout.sliced(size, plan.tiles(stage), plan.slice_methods[stage])
    return Layout.grid(size, (plan.tiles(stage), *[1] * (len(size) - 1)))


def nearly_equal(total: int, count: int) -> tuple[int, ...]:
    """`total` in `count` shares that differ by at most one, the larger ones first."""
    share, larger = divmod(total, count)
    return tuple(share + (i < larger) for i in range(count))
