"""All mistakes that can be known before ranks start are made here."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import replace

import torch

from ...comm.launchers import Started
from ...errors import Mpi4dlError, PlanError, UsageError
from ...models import MODELS
from ...pipeline import partition
from ..surroundings import check_surroundings
from .batches import Batches, batches
from .losses import loss_of
from .making import model_maker, optimizer_maker, scheduler_of, stand_in
from .metrics import Metrics
from .records import check_logging
from .sections import Configuration


def surroundings(configuration: Configuration) -> Namespace:
    """What is said about the machine, as flags would say it."""
    training = configuration.training
    return Namespace(backend=training.backend, device=training.device, json=None)


def checked_configuration(configuration: Configuration, started: Started | None) -> Configuration:
    """With the layers of every stage, if they can be computed beforehand."""
    c = configuration
    if started is not None:
        c.plan.check_world(started.size)
    try:
        check_surroundings(surroundings(c), started, c.plan.world_size)
    except Mpi4dlError as error:
        raise type(error)(_in_fields(str(error))) from error
    check_logging(c)
    model_maker(c.model)
    scheduler_of(c.scheduler, stand_in(optimizer_maker(c.optimizer)))
    loss_of(c.loss)
    _check_metrics(c)
    training, evaluation = batches(c)
    _check_batches(c, training, evaluation)
    return _balanced(c, training)


def _in_fields(message: str) -> str:
    message = re.sub(r"--(backend|device) (?=is\b)", r"training.\1 ", message)
    return re.sub(r"--(backend|device) (\S+?)(?=[,;]|$| )", r"training.\1=\2", message)


def _check_metrics(c: Configuration) -> None:
    Metrics(c.evaluation.metrics)
    names = {"loss"}
    for metric in c.evaluation.metrics:
        name = metric if isinstance(metric, str) else metric["name"]
        names.add(name.rpartition(":")[2])
    plateau = c.scheduler.name == "ReduceLROnPlateau"
    asked = {
        "training.stop_metric": c.training.stop_metric,
        "checkpoints.best": c.checkpoints.best,
        "scheduler.metric": c.scheduler.metric if plateau else None,
    }
    for field, name in asked.items():
        if name is not None and name not in names:
            raise UsageError(
                f"{field} is {name}, and an evaluation gives {', '.join(sorted(names))}: add it to "
                "evaluation.metrics"
            )


def _check_batches(c: Configuration, training: Batches, evaluation: Batches | None) -> None:
    try:
        c.plan.check_batch(c.training.batch_size)
    except PlanError as error:
        raise UsageError(f"training.batch_size: {error}") from error
    asks = c.training.stop_metric is not None or c.evaluation.metrics
    if evaluation is None and asks:
        raise UsageError("evaluation.metrics and training.stop_metric need data to evaluate")


def _balanced(c: Configuration, training: Batches) -> Configuration:
    """A model of one's own is built in the ranks only: it may do anything."""
    if c.model.name not in MODELS:
        return c
    try:
        with torch.device("meta"):
            model = model_maker(c.model)()
            model.to(getattr(torch, c.training.dtype))
            example = torch.empty(1, *training.shape, dtype=getattr(torch, c.training.dtype))
        stages = partition(model, c.plan, c.model.split_points or None, example=example)
    except (PlanError, ValueError) as error:
        raise UsageError(f"model {c.model.name}: {error}") from error
    plan = replace(c.plan, balance=tuple(len(stage) for stage in stages))
    return replace(c, plan=plan)
