"""Entry points of PyTorch that never ask a tile for its rule, made to refuse tiles.

Scripted functions, `torch.vmap` and `torch.func.grad` take the memory of their arguments as it is.
They would compute with this rank's part as if it were the whole, so they are wrapped: what they
do with other tensors is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap

from .registry import refuse
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
