"""What a rank needs to take part in a plan: its stages, and its wires to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..comm.communicator import Communicator
from .arrangement import Arrangement, Signature, arriving
from .boundary import Boundary
from .description import Leaf
from .plan import Plan
from .reduction import AddUp, Reduction, add_up_mirrored
from .running_statistics import RunningStatistics
from .stage import StageLayers

Group = tuple[tuple[int, ...], str]
"""Ranks, and what they talk about."""

_TILES, _GRADIENTS, _MIRROR = "tiles", "gradients", "mirror"


@dataclass
class Held:
    """A stage in one direction, as this rank has it. Without a boundary on one side, there is no
    stage there, or it is on the same ranks."""

    plan: Plan
    stage: int
    layers: StageLayers
    comm: Communicator
    """The ranks that have the stage together, in the order of its tiles."""
    incoming: Boundary | None
    outgoing: Boundary | None

    def arrange(self, leaf: Leaf, signature: Signature) -> Arrangement | None:
        """How an input of this stage lies on its ranks."""
        return arriving(self.plan, self.stage, leaf.shape, leaf.before, signature)

    def finish(self) -> None:
        for boundary in (self.incoming, self.outgoing):
            if boundary is not None:
                boundary.finish()


class Setup:
    """Made on all ranks alike: whoever shares a group of ranks meets the others in making it."""

    def __init__(
        self,
        plan: Plan,
        stages: Sequence[nn.Sequential],
        world: Communicator,
        device: torch.device,
    ) -> None:
        self.plan, self.world, self.device = plan, world, device
        mesh = plan.mesh
        self.replica = mesh.replica(world.rank)
        own = mesh.held(world.rank)
        self.modules = {stage: stages[stage] for stage in sorted({stage for _, stage in own})}
        connected = {group: world.subgroup(*group) for group in _groups_in_order(plan)}
        groups = {group: comm for group, comm in connected.items() if comm is not None}
        self.copies = {stage: groups[mesh.copies(stage), _GRADIENTS] for stage in self.modules}
        """All ranks that have a stage's parameters."""
        for module in self.modules.values():
            module.to(device)
        self.reductions = {
            stage: Reduction(trained([module]), self._add_up(stage, groups))
            for stage, module in self.modules.items()
            if self.copies[stage].size > 1
        }
        layers = {s: StageLayers(plan, s, m, device) for s, m in self.modules.items()}
        self.statistics = {
            stage: RunningStatistics(module, self.copies[stage])
            for stage, module in self.modules.items()
        }
        self.held = {
            (direction, stage): Held(
                plan,
                stage,
                layers[stage],
                groups[mesh.ranks(self.replica, direction, stage), _TILES],
                self._boundary(direction, stage - 1),
                self._boundary(direction, stage),
            )
            for direction, stage in own
        }

    def _boundary(self, direction: int, stage: int) -> Boundary | None:
        """Between a stage and the next."""
        if not 0 <= stage < self.plan.split_size - 1:
            return None
        mesh, plan = self.plan.mesh, self.plan
        sources = mesh.ranks(self.replica, direction, stage)
        targets = mesh.ranks(self.replica, direction, stage + 1)
        if sources == targets:
            return None

        def arrange(leaf: Leaf, signature: Signature) -> Arrangement | None:
            return arriving(plan, stage + 1, leaf.shape, leaf.before, signature)

        return Boundary(sources, targets, arrange, self.world, self.device)

    def _add_up(self, stage: int, groups: Mapping[Group, Communicator]) -> AddUp:
        """How the gradients of a stage are added up."""
        mirrored = _mirrored_groups(self.plan, stage)
        if mirrored is None:
            return self.copies[stage].start_all_reduce
        direction, pair = (
            next(groups[group] for group in kind if self.world.rank in group[0])
            for kind in mirrored
        )
        return add_up_mirrored(direction, pair)


def _mirrored_groups(plan: Plan, stage: int) -> tuple[list[Group], list[Group]] | None:
    """The ranks of either direction, and the pairs: if mirrored ranks are to exchange gradients.

    A rank that has tiles of the stage in both directions has no partner of its own; then all of
    the copies add up together.
    """
    mesh = plan.mesh
    if not plan.master_comm_opt or mesh.directions == 1:
        return None
    there, back = (
        tuple(r for replica in range(mesh.replicas) for r in mesh.ranks(replica, direction, stage))
        for direction in range(2)
    )
    if set(there) & set(back):
        return None
    pairs = zip(there, back, strict=True)
    return [(there, _MIRROR), (back, _MIRROR)], [(pair, _MIRROR) for pair in pairs]


def _groups_in_order(plan: Plan) -> dict[Group, None]:
    """All groups of ranks that talk among themselves, in one order for everybody."""
    mesh = plan.mesh
    groups: list[Group] = [
        (mesh.ranks(replica, direction, stage), _TILES)
        for replica in range(mesh.replicas)
        for direction in range(mesh.directions)
        for stage in range(mesh.stages)
    ]
    for stage in range(mesh.stages):
        groups.append((mesh.copies(stage), _GRADIENTS))
        for kind in _mirrored_groups(plan, stage) or ():
            groups += kind
    return dict.fromkeys(groups)


def trained(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Their parameters that want gradients, each once."""
    unique = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
    return list(unique.values())
