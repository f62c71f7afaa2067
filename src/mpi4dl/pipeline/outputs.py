"""From the ranks that have the outputs of a model to all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..comm.objects import receive, send
from ..spatial.tile import Tile
from .engine import Step
from .setup import Setup


def gathered(step: Step, setup: Setup) -> Any:
    """All micro-batches' outputs together, on every rank. Collective."""
    mesh, last = setup.plan.mesh, setup.plan.split_size - 1
    wholes = {i: tree_map(_whole, step.outputs[i]) for i in sorted(step.outputs)}
    everything = []
    for replica in range(mesh.replicas):
        for micro_batch, direction in enumerate(step.program.schedule.directions):
            owner = mesh.ranks(replica, direction, last)[0]
            mine = wholes.get(micro_batch) if replica == setup.replica else None
            everything.append(_from(owner, mine, setup))
    return tree_map(_joined, *everything)


def _from(owner: int, value: Any, setup: Setup) -> Any:
    world = setup.world
    others = [rank for rank in range(world.size) if rank != owner]
    if world.rank != owner:
        return receive(owner, world, setup.device)
    for pending in send(value, others, world, setup.device):
        pending.wait()
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, Tile):
        value = value.full_tensor()
    return value.detach() if isinstance(value, Tensor) else value


def _joined(*values: Any) -> Any:
    first = values[0]
    return torch.cat(values) if isinstance(first, Tensor) and first.ndim else first
