"""Losses by name, and those that PyTorch does not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from .making import checked, of_ones_own
from .reading import unknown
from .sections import Loss

LossFunction = Callable[[Any, Any], Tensor]


def dice(scores: Tensor, labels: Tensor, smooth: float = 1.0, background: bool = True) -> Tensor:
    """1 less the overlap of predicted and labelled pixels, of all samples, a mean over classes.

    `scores` (N, C, …) before softmax, `labels` (N, …). `background`: class 0 counts as well.
    """
    pixels = [dim for dim in range(scores.ndim) if dim != 1]
    found = scores.softmax(1)
    true = F.one_hot(labels, scores.shape[1]).movedim(-1, 1).to(found.dtype)
    both = (found * true).sum(pixels)
    either = found.sum(pixels) + true.sum(pixels)
    overlap = (2 * both + smooth) / (either + smooth)
    return 1 - overlap[0 if background else 1 :].mean()


OWN: dict[str, Callable[..., Tensor]] = {"dice": dice}
"""Those that torch.nn.functional lacks."""

_OF_PYTORCH = {
    name: function
    for name, function in vars(F).items()
    if name.endswith(("loss", "entropy", "div", "logits")) and not name.startswith("_")
}


def loss_of(
    loss: Loss, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> LossFunction:
    """Weights among its arguments are on the device, and of the type, of what is trained."""
    kind = {"device": device, "dtype": dtype}
    names = [name.strip() for name in loss.name.split("+")]
    if len(names) == 1:
        return _one(names[0], loss.arguments, kind)
    unclear = set(loss.arguments) - set(names)
    if unclear:
        raise UsageError(
            f"loss.arguments.{min(unclear)}: a sum has arguments for each of its parts: "
            f"{', '.join(names)}"
        )
    return _Sum([_one(name, loss.arguments.get(name) or {}, kind) for name in names])


class _Sum:
    def __init__(self, parts: list[LossFunction]) -> None:
        self._parts = parts

    def __call__(self, outputs: Any, labels: Any) -> Tensor:
        first, *others = [part(outputs, labels) for part in self._parts]
        return sum(others, first)


def _one(name: str, arguments: Mapping[str, Any], kind: Mapping[str, Any]) -> LossFunction:
    known: dict[str, Any] = {**OWN, **_OF_PYTORCH}
    if ":" in name:
        function = of_ones_own(name, "loss.name")
    elif name in known:
        function = known[name]
    else:
        raise UsageError(f"loss.name: {unknown(f'loss {name!r}', name, known)}")
    made = {key: _weights(value, kind) for key, value in arguments.items()}
    is_class = inspect.isclass(function)
    checked(function, 0 if is_class else 2, made, "loss.arguments")
    return function(**made) if is_class else partial(function, **made)


def _weights(value: Any, kind: Mapping[str, Any]) -> Any:
    """A list of numbers is a tensor, such as the weights of classes."""
    numbers = isinstance(value, list) and all(isinstance(one, (int, float)) for one in value)
    return torch.tensor(value, **kind) if numbers else value
