"""The same training step three ways: by mpi4dl, by torch.distributed.pipelining, in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed.pipelining as pipelining
import torch.nn.functional as F
from torch import Tensor, nn

import mpi4dl
from mpi4dl.models import resnet_v2
from mpi4dl.pipeline import partition

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet29": lambda: resnet_v2(29),
    "resnet110": lambda: resnet_v2(110),
    "convolutions": lambda: convolutions(16, 48),
}

PEERS: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zb-v": pipelining.ScheduleZBVZeroBubble,
}
"""What PyTorch has in place of our schedules."""

TWO_STAGES = ("interleaved", "zb-v")
"""These give every rank two stages."""

optimizer = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)

Step = Callable[[], Tensor | None]
"""Trains one batch, and gives its loss to those ranks that know it."""


def convolutions(depth: int, width: int) -> nn.Sequential:
    """Layers that are all alike, so that stages can be equally long."""

    def layer(inputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, width, 3, padding=1)
        return [convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]

    rows = [layer(3 if number == 0 else width) for number in range(depth)]
    rows[-1] += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(*(nn.Sequential(*row) for row in rows))


@dataclass(frozen=True)
class Case:
    """What is trained, the same on every rank."""

    model: str
    ranks: int
    parts: int
    samples: int
    """Of a micro-batch."""
    size: int
    times: int = 1

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.parts * self.times * self.samples

    @cached_property
    def images(self) -> Tensor:
        """One image for all samples: so the data takes the same memory, however many there are."""
        torch.manual_seed(0)
        return torch.randn(1, 3, self.size, self.size).expand(self.batch, -1, -1, -1)

    @cached_property
    def labels(self) -> Tensor:
        return torch.arange(self.batch) % 10

    def plan(self, schedule: str) -> mpi4dl.Plan:
        stages = self.ranks * (2 if schedule in TWO_STAGES else 1)
        return mpi4dl.Plan(split_size=stages, parts=self.parts, times=self.times, schedule=schedule)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a micro-batch."""
        return self.samples, 3, self.size, self.size

    def new_model(self) -> nn.Module:
        torch.manual_seed(0)
        return MODELS[self.model]()


def ours(case: Case, schedule: str) -> Step:
    trainer = mpi4dl.Trainer(
        case.new_model(),
        case.plan(schedule),
        loss=F.cross_entropy,
        optimizer=optimizer,
        example=case.shape,
    )
    return lambda: trainer.step(case.images, case.labels)


def theirs(case: Case, schedule: str) -> Step:
    """torch.distributed.pipelining, with the stages that our trainer makes."""
    plan, device = case.plan(schedule), torch.device("cpu")
    whole = partition(case.new_model(), plan, example=case.shape)
    held = [stage for _, stage in plan.mesh.held(torch.distributed.get_rank())]
    stages = [
        pipelining.PipelineStage(whole[stage], stage, len(whole), device) for stage in sorted(held)
    ]
    make, several = PEERS[schedule], schedule in TWO_STAGES
    pipeline = make(stages if several else stages[0], plan.parts, loss_fn=F.cross_entropy)
    sgd = optimizer([p for stage in sorted(held) for p in whole[stage].parameters()])
    first, last = 0 in held, len(whole) - 1 in held

    def step() -> Tensor | None:
        losses: list[Tensor] = []
        images = (case.images,) if first else ()
        target = case.labels if last else None
        pipeline.step(*images, target=target, losses=losses, return_outputs=False)
        sgd.step()
        sgd.zero_grad()
        return torch.stack(losses).detach().mean() if last else None

    return step


def alone(case: Case) -> Step:
    """One process, plain PyTorch, with the same micro-batches."""
    model = case.new_model()
    sgd, count = optimizer(model.parameters()), case.parts * case.times

    def step() -> Tensor:
        total = torch.zeros(())
        for x, y in zip(case.images.chunk(count), case.labels.chunk(count), strict=True):
            loss = F.cross_entropy(model(x.contiguous()), y) / count
            loss.backward()
            total += loss.detach()
        sgd.step()
        sgd.zero_grad()
        return total

    return step
