"""From the names of a configuration to models, optimizers and schedulers."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import DataError, UsageError
from ...models import MODELS
from ...pipeline import Trainer
from ..checkpoints import read_weights
from .reading import unknown
from .sections import Configuration, Model, Optimizer, Scheduler


def of_ones_own(name: str, path: str) -> Callable[..., Any]:
    """What `package.module:function` names; modules of the folder one is in are found as well."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} is {name}: {what}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{path} is {name}: {module} has no {part}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{path} is {name}, which cannot be called")
    return found


def checked(
    function: Callable[..., Any], given: int, arguments: Mapping[str, Any], path: str
) -> None:
    """Refuse arguments that the function does not have; `given` others come before them."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a builtin that does not say
    free = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    names = list(signature.parameters)[given:]
    for name in arguments:
        if name not in names and not free:
            raise UsageError(unknown(f"{path}.{name}", name, names))
    try:
        signature.bind(*[None] * given, **arguments)
    except TypeError as error:
        raise UsageError(f"{path}: {error}") from error


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def model_maker(model: Model) -> Callable[[], nn.Module]:
    """Makes the model; its name and arguments are checked at once."""
    if ":" in model.name:
        make = of_ones_own(model.name, "model.name")
    elif model.name in MODELS:
        make = MODELS[model.name]
    else:
        what = unknown(f"model {model.name!r}", model.name, MODELS)
        raise UsageError(f"model.name: {what}, or name your own as package.module:function")
    checked(make, 0, model.arguments, "model.arguments")
    return partial(make, **model.arguments)


def built(configuration: Configuration) -> nn.Module:
    """The whole model, with the same weights on every rank."""
    model = configuration.model
    torch.manual_seed(configuration.training.seed)
    try:
        made = model_maker(model)()
    except ValueError as error:
        raise UsageError(f"model: {error}") from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"model.name {model.name} made {type(made).__name__}; it must be a module")
    return made.to(getattr(torch, configuration.training.dtype))


def begin_with(trainer: Trainer, model: Model) -> None:
    """Weights of a safetensors file; each rank reads those of its own stages."""
    if model.weights is None:
        return
    lacking = trainer.load_state_dict(read_weights(model.weights), strict=False)
    differ = tuple(model.differ)
    wrong = {
        "missing": [name for name in lacking.missing if not name.startswith(differ)],
        "unknown": [name for name in lacking.unexpected if not name.startswith(differ)],
        "of another shape": [name for name in lacking.mismatched if not name.startswith(differ)],
    }
    problems = [
        f"{len(names)} {what} ({', '.join(names[:3])})" for what, names in wrong.items() if names
    ]
    if problems:
        raise DataError(
            f"{model.weights} has weights of another model: {'; '.join(problems)}. What differs on "
            "purpose, such as the last layer, is named in model.differ"
        )


# ── optimizers and schedulers ────────────────────────────────────────────────────────────────────


def _classes(module: Any, base: type) -> dict[str, type]:
    return {
        name: thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and issubclass(thing, base) and not name.startswith("_")
    }


def optimizer_maker(optimizer: Optimizer) -> Callable[..., torch.optim.Optimizer]:
    known = _classes(torch.optim, torch.optim.Optimizer)
    if optimizer.name not in known:
        raise UsageError(
            f"optimizer.name: {unknown(f'optimizer {optimizer.name!r}', optimizer.name, known)}"
        )
    if "lr" in optimizer.arguments:
        raise UsageError("optimizer.arguments.lr: the learning rate is optimizer.lr")
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in optimizer.arguments.items()}
    checked(known[optimizer.name], 1, {"lr": optimizer.lr, **lists}, "optimizer.arguments")
    make = partial(known[optimizer.name], lr=optimizer.lr, **lists)
    _tried(lambda: make([torch.zeros(1, requires_grad=True)]), "optimizer")
    return make


def scheduler_of(scheduler: Scheduler, optimizer: torch.optim.Optimizer) -> Any:
    """None without a name. Its arguments are those of PyTorch's class."""
    if scheduler.name is None:
        return None
    known = _classes(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler)
    known = {name: kind for name, kind in known.items() if name != "LRScheduler"}
    if scheduler.name not in known:
        raise UsageError(
            f"scheduler.name: {unknown(f'scheduler {scheduler.name!r}', scheduler.name, known)}"
        )
    kind = known[scheduler.name]
    checked(kind, 1, scheduler.arguments, "scheduler.arguments")
    return _tried(lambda: kind(optimizer, **scheduler.arguments), "scheduler")


def _tried(make: Callable[[], Any], path: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error


def stand_in(make: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """For the scheduler of a rank that trains nothing: learning rates are the same on all."""
    nothing: Tensor = torch.zeros(1, requires_grad=True)
    return make([nothing])
