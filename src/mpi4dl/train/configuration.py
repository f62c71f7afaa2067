"""A command line, made into a plan: all that is decided before anything starts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..errors import PlanError, UsageError
from ..pipeline import Plan, partition
from ..pipeline.near import near
from .arguments import in_flags
from .kinds import MODELS, TITLES, Kind


@dataclass(frozen=True)
class Configuration:
    kind: Kind
    model: str
    options: Namespace
    plan: Plan
    """Of all ranks, with the layers of every stage."""

    @property
    def samples(self) -> int:
        """Of a step: the effective batch size."""
        return self.plan.replicas * self.plan.times * int(self.options.batch_size)

    @property
    def title(self) -> str:
        size = self.options.image_size
        return (
            f"{TITLES[self.model]}, {self.kind.title}: images of {size}×{size}, "
            f"{self.samples} a step"
        )

    def build(self) -> nn.Sequential:
        """The whole model; the same weights on every rank."""
        torch.manual_seed(self.options.seed)
        return MODELS[self.model](self.options)

    def notes(self) -> Iterator[str]:
        """What was said and has no effect, for users who count on it."""
        o = self.options
        if not self.kind.spatial and (o.num_spatial_parts, o.spatial_size) != ("4", 1):
            yield f"--num-spatial-parts and --spatial-size have no effect on {self.kind.title}"
        if self.plan.spatial_size == 0 and (o.slice_method != "square" or o.halo_D2):
            yield "--slice-method and --halo-D2 have no effect: no stage is cut into tiles"
        if self.model == "resnet" and (o.num_layers, o.num_filters) != (18, 416):
            yield f"--num-layers and --num-filters are AmoebaNet's; this is {TITLES['resnet']}"
        if o.num_workers and o.app != 1:
            yield "--num-workers has no effect: only --app 1 has files that take time to read"


def configured(kind: Kind, model: str, options: Namespace, ranks: int | None) -> Configuration:
    """For so many ranks; None: for as many as are needed. What cannot be is an error here."""
    try:
        plan = _for_ranks(kind, _plan(kind, options), ranks)
        with torch.device("meta"):
            whole = MODELS[model](options)
        size = options.image_size
        _check_batch(options)
        _check_tiles(plan, size)
        _check_statistics(whole, options)
        stages = partition(whole, plan, example=(1, 3, size, size))
    except UsageError:
        raise
    except (PlanError, ValueError) as error:  # models raise ValueErrors
        raise UsageError(in_flags(str(error))) from error
    plan = replace(plan, balance=tuple(len(stage) for stage in stages))
    return Configuration(kind, model, options, plan)


def _plan(kind: Kind, options: Namespace) -> Plan:
    spatial = kind.spatial and options.spatial_size > 0
    return Plan(
        split_size=options.split_size,
        num_spatial_parts=options.num_spatial_parts if spatial else 1,
        spatial_size=options.spatial_size if spatial else 0,
        slice_method=options.slice_method,
        parts=options.parts,
        schedule=options.schedule or kind.schedule,
        local_dp=options.local_DP,
        times=options.times,
        balance=options.balance,
        halo_d2=options.halo_D2,
        fused_layers=options.fused_layers,
        checkpoint_activations=options.checkpoint_activations,
        precision=options.precision,
        master_comm_opt=options.enable_master_comm_opt,
    )


def _for_ranks(kind: Kind, plan: Plan, ranks: int | None) -> Plan:
    """As in the original, several times as many ranks are so many replicas."""
    if ranks is None or ranks == plan.world_size:
        return plan
    replicas, left = divmod(ranks, plan.world_size)
    if left == 0:
        return replace(plan, replicas=replicas)
    others = [o for o in near(plan, ranks) if kind.spatial or "spatial" not in o]
    instead = f", or use {' or '.join(others)}" if others else ""
    raise UsageError(
        in_flags(
            f"this configuration needs {_ranks(plan.world_size)}, or a multiple for replicas "
            f"({_why(plan)}), and {ranks} {'was' if ranks == 1 else 'were'} started: start "
            f"{plan.world_size}{instead}"
        )
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _why(plan: Plan) -> str:
    if plan.world_size == 1:
        return "a single stage that is not cut"
    terms = []
    for stage in range(plan.split_size):
        kind = "tiles" if stage < plan.spatial_size else "of the batch" * (plan.tiles(stage) > 1)
        terms.append(f"stage {stage}: {plan.tiles(stage)} {kind}".rstrip())
    return f"{', '.join(terms)}; {plan.sum_of_ranks}"


def _check_batch(options: Namespace) -> None:
    if options.batch_size < options.parts:
        raise UsageError(
            f"--batch-size is {options.batch_size}, and --parts cuts a batch into {options.parts} "
            f"micro-batches, which have at least 1 image each: use --batch-size {options.parts}, "
            f"or --parts {options.batch_size}"
        )


def _check_tiles(plan: Plan, size: int) -> None:
    for stage in range(plan.spatial_size):
        layout = plan.layout(stage, (1, size, size))
        empty = sum(box.empty for box in layout.boxes)
        if empty:
            raise UsageError(
                f"--image-size is {size}, and stage {stage} cuts images into "
                f"{plan.tiles(stage)} tiles ({plan.slice_methods[stage]}), of which {empty} would "
                "have no pixels: use larger images, or a smaller --num-spatial-parts"
            )


def _check_statistics(whole: nn.Module, options: Namespace) -> None:
    """What BatchNorm refuses in one process would stop the run later."""
    samples, size = options.batch_size // options.parts, options.image_size
    try:
        with torch.no_grad():
            whole(torch.empty(samples, 3, size, size, device="meta"))
    except ValueError as error:
        if "more than 1 value" not in str(error):
            raise
        raise UsageError(
            f"--image-size {size} with micro-batches of {samples} leaves a BatchNorm of this model "
            "a single value of each channel, from which there is no variance: use larger images, "
            "or a larger --batch-size for each of the --parts"
        ) from error
