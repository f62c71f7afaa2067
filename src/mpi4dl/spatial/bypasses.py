"""Entry points of PyTorch that never ask a tile for its rule, made to refuse tiles.

Scripted functions, `torch.vmap` and `torch.func.grad` take the memory of their arguments as it is.
They would compute with this rank's part as if it were the whole, so they are wrapped: what they
do with other tensors is unchanged. So are autograd functions that are neither
PyTorch's nor ours: their backward would mix local gradients with sizes and saved tensors of the
whole image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap

from .registry import HANDLERS, refuse
from .tile import Tile


def _refusing(original: Callable[..., Any], name: str, remedy: str) -> Callable[..., Any]:
    @wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, Tile) for value in (*args, *kwargs.values())):
            refuse(name, "it takes a tile's part for the whole tensor", remedy)
        return original(*args, **kwargs)

    return checked


def _wrap(owner: Any, attribute: str, name: str, remedy: str) -> None:
    original = getattr(owner, attribute, None)
    if original is not None:
        setattr(owner, attribute, _refusing(original, name, remedy))


_wrap(
    torch.jit.ScriptFunction,
    "__call__",
    "a function compiled by torch.jit",
    "Use the Python function that was scripted",
)
_wrap(
    vmap,
    "_add_batch_dim",
    "torch.vmap",
    "Write the batch as a dimension of the operators",
)
_wrap(
    eager_transforms,
    "_wrap_for_grad",
    "torch.func.grad and its kin",
    "Use backward() or torch.autograd.grad",
)
_wrap(
    eager_transforms,
    "_wrap_functional_tensor",
    "torch.func.functionalize",
    "Call the function itself",
)

_apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]


def _checked_apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    foreign = not cls.__module__.startswith(("torch.", "mpi4dl."))
    if foreign and any(isinstance(value, Tile) for value in (*args, *kwargs.values())):
        handler = HANDLERS.get(cls)
        if handler is not None:
            return handler(cls, *args, **kwargs)
        refuse(
            f"{cls.__module__}.{cls.__qualname__}",
            "the backward of a custom autograd function sees this rank's gradients only",
            "Use the operators that it stands for, or give it a rule of its own: "
            f"@mpi4dl.spatial_op({cls.__qualname__})",
        )
    if cls.__module__.startswith("torch."):  # they know the shapes of the own regions
        args = tuple(value.settled() if isinstance(value, Tile) else value for value in args)
    return _apply(cls, *args, **kwargs)


torch.autograd.Function.apply = classmethod(_checked_apply)  # type: ignore[assignment]
