"""What all ranks have to know after a step, in one all-reduce."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .engine import Step
from .setup import Setup, trained


@dataclass(frozen=True)
class Totals:
    """Of the whole model, and the same on all ranks."""

    loss: Tensor
    norm: float
    """Of the gradient, if it was wanted."""
    stop: bool
    """Whether any rank wants to stop."""

    @property
    def finite(self) -> bool:
        return bool(self.loss.isfinite()) and self.updatable

    @property
    def updatable(self) -> bool:
        """Whether the optimizer can do something with the gradient."""
        return self.norm < float("inf")


def totals(setup: Setup, step: Step, norm: bool, scale: float, stop: bool) -> Totals:
    """Collective."""
    sums = torch.zeros(3, dtype=torch.float64, device=setup.device)
    for micro_batch, loss in step.losses.items():
        sums[0] += loss.double() * step.weight(micro_batch)
    last = setup.plan.split_size - 1
    held = [held for (_, stage), held in setup.held.items() if stage == last]
    sums[0] /= held[0].comm.size if held else 1
    if norm and step.updating:
        for stage, module in setup.modules.items():
            if setup.copies[stage].rank == 0:
                for parameter in trained([module]):
                    if parameter.grad is not None:
                        sums[1] += parameter.grad.double().square().sum()
    sums[2] = float(stop)
    if setup.world.size > 1:
        setup.world.all_reduce(sums)
    loss, square, wishes = sums.cpu()
    return Totals(loss, float(square.sqrt()) / scale, bool(wishes))
