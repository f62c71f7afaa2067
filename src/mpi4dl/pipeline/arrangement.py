"""How a tensor lies on the ranks of a stage, and what has to travel from one stage to the next.

    stage 0: four tiles        stage 1: two ranks share the batch
    ┌───┬───┐                  ┌───────┐
    │ 0 │ 1 │                  │   4   │  samples 0, 1      one Transfer over the ranks 0 to 5:
    ├───┼───┤          ─▶      ╞╌╌╌╌╌╌╌╡                    the first four have all of it,
    │ 2 │ 3 │                  │   5   │  samples 2, 3      the last two want all of it
    └───┴───┘                  └───────┘

Plain integers; whatever is cut, and wherever, is a list of boxes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from ..geometry import Box, Interval, Layout, Transfer
from .plan import Plan
from .settings import StageKind

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Arrangement:
    """Which dimensions (negative) of a tensor are shared out, and how. In place of an arrangement,
    None says that every rank of the stage has everything."""

    layout: Layout
    dims: tuple[int, ...]

    def boxes(self, shape: Shape) -> tuple[Box, ...]:
        """What each rank has, in all dimensions."""
        whole = Box.full(shape).intervals
        axes = {dim % len(shape): axis for axis, dim in enumerate(self.dims)}
        return tuple(
            Box(tuple(box[axes[d]] if d in axes else whole[d] for d in range(len(shape))))
            for box in self.layout.boxes
        )


@dataclass(frozen=True)
class Signature:
    """Of a micro-batch: all that the shapes on a boundary may depend on."""

    samples: int
    image_dims: int
    training: bool
    inputs: Hashable


def feeding(plan: Plan, stage: int, shape: Shape, image_dims: int) -> Arrangement | None:
    """How a tensor that is known everywhere, such as the images, is shared out.

    A spatial stage cuts the last `image_dims` dimensions of what has a batch and channels before
    them. Others stay whole: that changes who holds what, and nothing that is computed.
    """
    if plan.kind(stage) is StageKind.SPATIAL:
        return _spatial(plan, stage, shape, image_dims)
    return _batch(plan, stage, shape)


def arriving(
    plan: Plan, stage: int, shape: Shape, before: Arrangement | None, signature: Signature
) -> Arrangement | None:
    """How a tensor lies on `stage` that was arranged as `before` on the stage before it."""
    if plan.kind(stage) is not StageKind.SPATIAL:
        return _batch(plan, stage, shape) if shape[0] == signature.samples else None
    if before is None:
        # What tiles have computed together, such as a mean over the image, is wanted whole.
        was_spatial = plan.kind(stage - 1) is StageKind.SPATIAL
        return None if was_spatial else _spatial(plan, stage, shape, signature.image_dims)
    dims = tuple(dim for dim in before.dims if dim != -len(shape))
    return _cut(plan, stage, shape, dims) if dims else None


def labelling(
    shape: Shape, outputs: tuple[tuple[Shape, Arrangement | None], ...]
) -> Arrangement | None:
    """How labels of this shape are shared out: like the output whose cut dimensions they have."""
    for other, arrangement in outputs:
        if arrangement is None:
            continue
        if arrangement.dims == (-len(other),):  # the batch
            if shape and shape[0] == other[0]:
                return Arrangement(arrangement.layout, (-len(shape),))
        elif _fits(shape, arrangement):
            return arrangement
    return None


def _fits(shape: Shape, arrangement: Arrangement) -> bool:
    sizes = zip(arrangement.dims, arrangement.layout.size, strict=True)
    return all(len(shape) > -dim and shape[dim] == size for dim, size in sizes)


def _spatial(plan: Plan, stage: int, shape: Shape, image_dims: int) -> Arrangement | None:
    if image_dims < 1 or len(shape) < image_dims + 2:
        return None
    return _cut(plan, stage, shape, tuple(range(-image_dims, 0)))


def _cut(plan: Plan, stage: int, shape: Shape, dims: tuple[int, ...]) -> Arrangement:
    return Arrangement(plan.layout(stage, tuple(shape[dim] for dim in dims)), dims)


def _batch(plan: Plan, stage: int, shape: Shape) -> Arrangement | None:
    if plan.kind(stage) is StageKind.WHOLE or not shape:
        return None
    return Arrangement(plan.layout(stage, shape[:1]), (-len(shape),))


@lru_cache(maxsize=4096)
def crossing(
    shape: Shape,
    before: Arrangement | None,
    sources: int,
    after: Arrangement | None,
    targets: int,
) -> Transfer:
    """From the ranks of one stage to those of another; together they are numbered in this order.

    What all sources have alike is sent by the first, and its gradient returns there: the others
    get none, and the sum over them is right.
    """
    whole, nothing = Box.full(shape), Box((Interval(0, 0),) * len(shape))
    has = (whole, *(nothing,) * (sources - 1)) if before is None else before.boxes(shape)
    wants = (whole,) * targets if after is None else after.boxes(shape)
    layout = Layout(shape, (*has, *(nothing,) * targets))
    return Transfer(layout, (*(nothing,) * sources, *wants))
