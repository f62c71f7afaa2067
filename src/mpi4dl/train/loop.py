"""Trains as a configuration says, and measures each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..comm.communicator import Communicator, use
from ..comm.objects import shared
from ..pipeline import Trainer
from .breakdown import broken_down, mean
from .configuration import Configuration
from .data import source
from .device import device_for, synchronize
from .memory import peak_mib
from .progress import progress
from .timed import Log, timed
from .traffic import counted


@dataclass(frozen=True)
class Measured:
    """Of the steps after those that warm up, as rank 0 saw them; and of every rank."""

    losses: list[float]
    seconds: list[float]
    ranks: list[dict[str, Any]]
    """The mean breakdown of a step on each rank, `peak_mib`, `imports_mib` before all that, and
    `sent_bytes` of the last step."""


def trained(
    configuration: Configuration, comm: Communicator, build: Callable[[], nn.Module]
) -> Measured:
    """Collective. Of what `build` makes, only this rank's stages are kept."""
    options, log = configuration.options, Log()
    device = device_for(options.device, comm)
    imports = peak_mib(device)
    with use(timed(comm, log)):
        trainer = trainer_of(configuration, build(), device)
        return _measured(configuration, trainer, comm, log, device, imports)


def trainer_of(
    configuration: Configuration, model: nn.Module, device: torch.device | None = None
) -> Trainer:
    return Trainer(
        model,
        configuration.plan,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=configuration.options.lr),
        device=device,
    )


def _measured(
    configuration: Configuration,
    trainer: Trainer,
    comm: Communicator,
    log: Log,
    device: torch.device,
    imports: float,
) -> Measured:
    options, samples = configuration.options, configuration.samples
    images = source(options, samples)
    measured = (options.steps or images.steps) * options.num_epochs
    total = options.warmup + measured
    bar = progress(comm.rank, total, options.verbose)
    losses, seconds, breakdowns = [], [], []
    for step in range(total):
        log.calls.clear()
        started = time.perf_counter()
        loss = trainer.step(*images.batch(step))
        synchronize(device)
        took = time.perf_counter() - started
        warming = " (warm-up)" if step < options.warmup else ""
        rate, memory = f"{samples / took:.3g} images/s", f"{peak_mib(device):,.0f} MiB"
        bar.step(step + 1, f"loss {float(loss):.4f}, {rate}, {memory}{warming}")
        if not warming:
            losses.append(float(loss))
            seconds.append(took)
            breakdowns.append(broken_down(took, trainer.spans, log.calls))
    bar.close()
    own: dict[str, Any] = {**asdict(mean(breakdowns)), "peak_mib": peak_mib(device)}
    own["imports_mib"] = imports
    own["sent_bytes"] = asdict(counted(log.calls))
    return Measured(losses, seconds, shared(own, comm, device))
