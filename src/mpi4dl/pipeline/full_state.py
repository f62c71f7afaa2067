"""All that training goes on from, under names that no layout shows in.

    model.NAME                    parameters and buffers
    optim.state.NAME.KEY          what the optimizer knows of a parameter
    optim.param_groups.NAME       the options of the parameter's group
    gradient.NAME                 in the middle of an accumulation: added up over all copies
    LABEL.NAME                    companions
    rng.torch                     the state of PyTorch's generator
    training                      steps, seed, loss scale

NAME is that of the whole model, so which rank had what, or how many there were, does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from .loss_scale import LossScale
from .optimizer_state import OptimizerState
from .setup import Setup

Kinds = Mapping[str, tuple[int, ...]]
"""Shapes of what there is to load, by key."""

_RNG, _TRAINING = "rng.torch", "training"


@dataclass
class Position:
    """Where the training is."""

    seed: int
    accumulate: int
    steps: int = 0
    waiting: int = 0
    """Steps whose gradients wait for the optimizer."""


class FullState:
    """Of one rank: what it has to save, and what it needs to load."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        setup: Setup,
        optimizer: torch.optim.Optimizer | None,
        scale: LossScale,
        position: Position,
    ) -> None:
        self._setup, self._scale, self._position = setup, scale, position
        self._shapes = {
            name: tuple(tensor.shape)
            for stage in stages
            for name, tensor in stage.state_dict().items()
        }
        self._trained = {name for stage in stages for name in named_parameters([stage])}
        self._mine = _share(stages, setup)
        self._optimizer = OptimizerState(optimizer, named_parameters(setup.modules.values()))
        self._companions: dict[str, dict[str, Tensor]] = {}

    def add_companion(self, label: str, tensors: Mapping[str, Tensor]) -> None:
        unknown = sorted(set(tensors) - set(self._own()))
        if unknown:
            raise CheckpointError(
                f"{label}: this rank has no {unknown[0]}; companions are named as the parameters "
                "and buffers that the rank has"
            )
        self._companions[label] = dict(tensors)

    # ── to save ──────────────────────────────────────────────────────────────────────────────

    def collect(self) -> dict[str, Any]:
        """This rank's share: together, the ranks have everything once. Collective."""
        gradients = self._gradients() if self._position.waiting else {}
        state: dict[str, Any] = {f"model.{n}": t for n, t in self._own().items() if n in self._mine}
        state |= {f"gradient.{n}": g for n, g in gradients.items() if n in self._mine}
        for label, tensors in self._companions.items():
            state |= {f"{label}.{n}": t for n, t in tensors.items() if n in self._mine}
        state |= self._optimizer.collect(self._mine)
        if self._setup.world.rank == 0:
            state[_RNG] = torch.get_rng_state()
            state[_TRAINING] = {**asdict(self._position), "scale": asdict(self._scale)}
        return state

    def _gradients(self) -> dict[str, Tensor]:
        """Of the accumulation under way: sums over all copies, as the optimizer will see them."""
        sums: dict[str, Tensor] = {}
        for stage, module in self._setup.modules.items():
            for name, parameter in named_parameters([module]).items():
                grad = parameter.grad
                there = torch.tensor(float(grad is not None), device=parameter.device)
                total = torch.zeros_like(parameter) if grad is None else grad.detach().clone()
                self._setup.copies[stage].all_reduce(there)
                self._setup.copies[stage].all_reduce(total)
                if there:
                    sums[name] = total / self._scale.value
        return sums

    # ── to load ──────────────────────────────────────────────────────────────────────────────

    def wanted(self, kinds: Kinds, values: Mapping[str, Any]) -> list[str]:
        """The keys that this rank needs; CheckpointError if they are another training's."""
        self._check_model(kinds)
        self._check_trained(values)
        training = values[_TRAINING]
        waiting, accumulate = training["waiting"], training["accumulate"]
        if waiting and accumulate != self._position.accumulate:
            raise CheckpointError(
                f"the checkpoint is {waiting} steps into an accumulation of {accumulate}, and this "
                f"trainer accumulates {self._position.accumulate}: use accumulate={accumulate}, or "
                "a checkpoint between two updates"
            )
        own = self._own()
        keys = [f"model.{name}" for name in own]
        keys += [f"{label}.{n}" for label, tensors in self._companions.items() for n in tensors]
        keys += self._optimizer.wanted(list(kinds), values)
        gradients = [f"gradient.{name}" for name in self._receives_gradients()]
        keys += [key for key in gradients if key in kinds]
        missing = [key for key in keys if key not in kinds and key not in values]
        if missing:
            raise CheckpointError(f"the checkpoint has no {missing[0]}: it was saved without")
        return [*keys, _RNG, _TRAINING]

    def _check_model(self, kinds: Kinds) -> None:
        saved = {k.removeprefix("model."): s for k, s in kinds.items() if k.startswith("model.")}
        ours = self._shapes
        differences = [f"it has no {name}" for name in ours if name not in saved]
        differences += [f"it has {name}, the model has not" for name in saved if name not in ours]
        differences += [
            f"{name} is {saved[name]} in it and {shape} in the model"
            for name, shape in ours.items()
            if name in saved and saved[name] != shape
        ]
        if differences:
            more = f"; and {len(differences) - 3} more differences" if len(differences) > 3 else ""
            raise CheckpointError(
                f"the checkpoint belongs to another model: {'; '.join(differences[:3])}{more}"
            )

    def _check_trained(self, values: Mapping[str, Any]) -> None:
        """The same on all ranks, also on those without parameters."""
        prefix = "optim.param_groups."
        saved = {key.removeprefix(prefix) for key in values if key.startswith(prefix)}
        if self._optimizer.present and saved != self._trained:
            name = min(saved ^ self._trained)
            what = "in it and not here" if name in saved else "here and not in it"
            raise CheckpointError(
                f"the checkpoint belongs to another training: {name} is trained {what} "
                f"({len(saved ^ self._trained)} such parameters)"
            )

    def load(self, state: Mapping[str, Any]) -> None:
        """What `wanted` has named."""
        with torch.no_grad():
            for name, tensor in self._own().items():
                tensor.copy_(state[f"model.{name}"])
            for label, tensors in self._companions.items():
                for name, tensor in tensors.items():
                    tensor.copy_(state[f"{label}.{name}"])
        self._optimizer.load(state)
        torch.set_rng_state(state[_RNG].cpu())
        training = state[_TRAINING]
        for name in ("seed", "steps", "waiting"):
            setattr(self._position, name, training[name])
        if self._scale.enabled and training["scale"]["enabled"]:
            self._scale.value, self._scale.good = (training["scale"][n] for n in ("value", "good"))
        self._load_gradients(state)

    def _load_gradients(self, state: Mapping[str, Any]) -> None:
        own = named_parameters(self._setup.modules.values())
        for parameter in own.values():
            parameter.grad = None
        for name in self._receives_gradients():
            gradient = state.get(f"gradient.{name}")
            if gradient is not None:
                own[name].grad = gradient.to(own[name]) * self._scale.value

    def _receives_gradients(self) -> list[str]:
        """A sum over copies that was saved counts once: the first copy has it."""
        copies = self._setup.copies
        first = [module for stage, module in self._setup.modules.items() if not copies[stage].rank]
        return list(named_parameters(first))

    def _own(self) -> dict[str, Tensor]:
        modules = self._setup.modules.values()
        return {name: t.detach() for m in modules for name, t in m.state_dict().items()}


def named_parameters(modules: Any) -> dict[str, nn.Parameter]:
    """Those that are trained, each under one name, whichever stages it is in."""
    names: dict[int, str] = {}
    parameters: dict[int, nn.Parameter] = {}
    for module in modules:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter.requires_grad:
                names[id(parameter)] = min(name, names.get(id(parameter), name))
                parameters[id(parameter)] = parameter
    return {names[key]: parameter for key, parameter in parameters.items()}


def _share(stages: Sequence[nn.Module], setup: Setup) -> set[str]:
    """What this rank writes of what several have: every rank finds the same without asking."""
    load = [0] * setup.world.size
    mine: set[str] = set()
    for number, stage in enumerate(stages):
        copies = setup.plan.mesh.copies(number)
        for name, tensor in stage.state_dict().items():
            writer = min(copies, key=lambda rank: (load[rank], rank))
            load[writer] += tensor.numel() * tensor.element_size()
            if writer == setup.world.rank:
                mine.add(name)
    return mine
