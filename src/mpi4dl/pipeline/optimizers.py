"""The optimizer of this rank's parameters, its state shared out among all copies if wanted."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import PlanError
from .plan import Plan
from .setup import Setup

MakeOptimizer = Callable[[Sequence[Tensor]], torch.optim.Optimizer]


def check_sharding(plan: Plan, make: MakeOptimizer | None) -> None:
    """Refuse, on every rank alike, what `sharded` could not do on one of them."""
    if make is None:
        raise PlanError("shard_optimizer is on, and there is no optimizer: give one")
    _recipe(make)
    mesh = plan.mesh
    for rank in range(mesh.size):
        stages = sorted({stage for _, stage in mesh.held(rank)})
        if len({mesh.copies(stage) for stage in stages}) > 1:
            raise PlanError(
                f"shard_optimizer: rank {rank} has the stages {stages}, whose copies are on "
                "different ranks, so no group could share out its optimizer's state. Use a "
                "schedule with one direction, or shard_optimizer=False"
            )


def sharded(
    make: MakeOptimizer, parameters: Sequence[Tensor], setup: Setup
) -> torch.optim.Optimizer | None:
    """ZeRO-1 by PyTorch's own ZeroRedundancyOptimizer: each copy keeps the state of its share of
    the parameters, updates those, and sends them to the others. Collective."""
    if not dist.is_initialized() or setup.world.size != dist.get_world_size():
        raise PlanError("shard_optimizer needs a plan for all processes of a job, no threads")
    mesh = setup.plan.mesh
    everybodys = sorted({mesh.copies(stage) for stage in range(mesh.stages)})
    groups = {copies: dist.new_group(copies) for copies in everybodys}
    if not parameters:
        return None
    copies = mesh.copies(next(iter(setup.modules)))
    if len(copies) == 1:
        return make(parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, at its import
        from torch.distributed.optim import ZeroRedundancyOptimizer
    kind, options = _recipe(make)
    return ZeroRedundancyOptimizer(
        parameters, optimizer_class=kind, process_group=groups[copies], **options
    )


def own_part(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that has the state of this rank's share; itself, where nothing is shared out."""
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        inner: torch.optim.Optimizer = optimizer.optim  # type: ignore[attr-defined]
        return inner
    return optimizer


def _recipe(make: Any) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """A class of optimizers, and what it is to be called with."""
    kind, options = make, {}
    if isinstance(make, functools.partial) and not make.args:
        kind, options = make.func, make.keywords
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise PlanError(
            "shard_optimizer needs an optimizer class, or functools.partial of one with named "
            f"options, such as partial(torch.optim.Adam, lr=1e-3); it is {make!r}"
        )
    return kind, options
