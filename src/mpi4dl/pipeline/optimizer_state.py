"""A PyTorch optimizer's state, by the names of the parameters instead of their numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from .optimizers import own_part

_STATE, _GROUPS = "optim.state.", "optim.param_groups."
_PLAIN = (bool, int, float, str, type(None))


class OptimizerState:
    """Of one rank's optimizer; `names` are those of the parameters that the rank has."""

    def __init__(
        self, optimizer: torch.optim.Optimizer | None, names: Mapping[str, nn.Parameter]
    ) -> None:
        self._optimizer = optimizer
        self._parameters = dict(names)
        self._names = {id(parameter): name for name, parameter in names.items()}

    @property
    def present(self) -> bool:
        return self._optimizer is not None

    @property
    def kind(self) -> str:
        return "" if self._optimizer is None else type(own_part(self._optimizer)).__name__

    # ── to save ──────────────────────────────────────────────────────────────────────────────

    def collect(self, mine: Collection[str]) -> dict[str, Any]:
        """What this rank is to write; `mine` are the parameters it writes of those several have.

        Where copies share out the state, whoever has it writes it.
        """
        if self._optimizer is None:
            return {}
        saved: dict[str, Any] = {}
        shared_out = own_part(self._optimizer) is not self._optimizer
        for name, state in self._states().items():
            if shared_out or name in mine:
                saved |= {f"{_STATE}{name}.{key}": v for key, v in _checked(name, state).items()}
        for group in self._optimizer.param_groups:
            options = {k: _plain(k, v) for k, v in group.items() if k != "params"}
            options["optimizer"] = self.kind
            names = {self._names[id(p)] for p in group["params"]}
            saved |= {_GROUPS + name: options for name in names if name in mine}
        return saved

    def _states(self) -> dict[str, dict[str, Any]]:
        assert self._optimizer is not None
        state = own_part(self._optimizer).state
        stray = [key for key in state if id(key) not in self._names]
        if stray:
            raise CheckpointError(
                f"{self.kind} keeps a state that belongs to no parameter of the model "
                f"({stray[0]!r:.40}), which no checkpoint could name"
            )
        return {self._names[id(parameter)]: values for parameter, values in state.items()}

    # ── to load ──────────────────────────────────────────────────────────────────────────────

    def wanted(self, keys: Collection[str], values: Mapping[str, Any]) -> list[str]:
        if self._optimizer is None:
            return []
        own = {id(p) for g in own_part(self._optimizer).param_groups for p in g["params"]}
        stateful = {name for name, p in self._parameters.items() if id(p) in own}
        self._check_groups(values)
        states = [key for key in (*keys, *values) if _split(key)[0] in stateful]
        return states + [_GROUPS + name for name in self._parameters]

    def _check_groups(self, values: Mapping[str, Any]) -> None:
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            options = [values[_GROUPS + self._names[id(p)]] for p in group["params"]]
            if any(one != options[0] for one in options):
                raise CheckpointError(
                    "the checkpoint belongs to another optimizer: parameters that are one group "
                    f"here had different options, such as {self._names[id(group['params'][0])]}"
                )
            if options and options[0]["optimizer"] != self.kind:
                raise CheckpointError(
                    f"the checkpoint belongs to another optimizer: it was saved with "
                    f"{options[0]['optimizer']}, and this is {self.kind}"
                )

    def load(self, saved: Mapping[str, Any]) -> None:
        """By the optimizer's own `load_state_dict`, which knows what belongs on which device."""
        if self._optimizer is None:
            return
        inner = own_part(self._optimizer)
        states: dict[str, dict[str, Any]] = {}
        for key, value in saved.items():
            name, entry = _split(key)
            if entry:
                states.setdefault(name, {})[entry] = value
        packed = inner.state_dict()
        numbered = [p for group in inner.param_groups for p in group["params"]]
        packed["state"] = {
            number: states[self._names[id(parameter)]]
            for number, parameter in enumerate(numbered)
            if self._names[id(parameter)] in states
        }
        inner.load_state_dict(packed)
        for group, own in zip(self._optimizer.param_groups, inner.param_groups, strict=True):
            for parameter in group["params"][:1]:
                options = saved[_GROUPS + self._names[id(parameter)]]
                for name, value in options.items():
                    if name != "optimizer":
                        group[name] = own[name] = _like(group.get(name), value)


def _split(key: str) -> tuple[str, str]:
    """The parameter and the entry of its state; nothing if it is another key."""
    if not key.startswith(_STATE):
        return "", ""
    name, _, entry = key.removeprefix(_STATE).rpartition(".")
    return name, entry


def _checked(name: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, value in state.items():
        if not isinstance(key, str) or "." in key or not isinstance(value, (Tensor, *_PLAIN)):
            raise CheckpointError(
                f"the optimizer's state of {name} has {key!r}, a {type(value).__name__}: "
                "checkpoints take tensors and numbers, for each parameter its own"
            )
    return state


def _plain(name: str, value: Any) -> Any:
    """An option of a group, for JSON."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)) and all(isinstance(v, (Tensor, *_PLAIN)) for v in value):
        return [_plain(name, one) for one in value]
    if isinstance(value, _PLAIN):
        return value
    raise CheckpointError(
        f"the optimizer's option {name} is a {type(value).__name__}: checkpoints take numbers, "
        "texts, and tuples of them"
    )


def _like(present: Any, value: Any) -> Any:
    """What was read, in the form that the optimizer has."""
    if isinstance(present, Tensor):
        return torch.full_like(present, value)
    if isinstance(present, tuple):
        return tuple(value)
    return value
