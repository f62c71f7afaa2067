"""What a rank needs to take part in a plan: its stages, and its wires to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..comm.communicator import Communicator
from .arrangement import Arrangement, Signature, arriving
from .boundary import Boundary
from .description import Leaf
from .plan import Plan
from .running_statistics import RunningStatistics
from .stage import StageLayers


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
        groups = {
            ranks: world.subgroup(ranks) for ranks in _groups_in_order(plan) if world.rank in ranks
        }
        self.copies = {stage: groups[mesh.copies(stage)] for stage in self.modules}
        """All ranks that have a stage's parameters."""
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
                groups[mesh.ranks(self.replica, direction, stage)],
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


def _groups_in_order(plan: Plan) -> dict[tuple[int, ...], None]:
    """All groups of ranks that talk among themselves, in one order for everybody."""
    mesh = plan.mesh
    tiles = [
        mesh.ranks(replica, direction, stage)
        for replica in range(mesh.replicas)
        for direction in range(mesh.directions)
        for stage in range(mesh.stages)
    ]
    return dict.fromkeys([*tiles, *(mesh.copies(stage) for stage in range(mesh.stages))])
