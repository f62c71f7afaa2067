"""Checkpoints run a function again on what they kept of its inputs: on tiles, it has to be tiles.

What PyTorch keeps passes through the hooks on saved tensors that are in force. If there are any
(those of a checkpoint around this one, `torch.autograd.graph.save_on_cpu`), it comes back without
its class, and the second run would take a rank's part for the whole. So the parts are kept, and
the function gets tiles that are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

from .registry import no_intercept
from .tile import Tile, alias


def _on_tiles(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """`function` for the parts of those `inputs` that are tiles; its own are the last of them."""
    makers = [value.maker() if isinstance(value, Tile) else None for value in inputs]
    if not any(makers):
        return function

    def of_parts(*given: Any, **named: Any) -> Any:
        own = makers[len(makers) - len(given) :]
        tiles = (make(x) if make else x for make, x in zip(own, given, strict=True))
        return function(*tiles, **named)

    return of_parts


def _parts(inputs: tuple[Any, ...]) -> list[Any]:
    return [alias(value) if isinstance(value, Tile) else value for value in inputs]


_generator = checkpoint._checkpoint_without_reentrant_generator
_apply = checkpoint.CheckpointFunction.apply


def _keeping_parts(fn: Callable[..., Any], *inputs: Any, **named: Any) -> Iterator[None]:
    """What runs around the function: it alone sees to the second run (`use_reentrant=False`)."""
    return _generator(_on_tiles(fn, inputs), *_parts(inputs), **named)


def _run_on_parts(run_function: Callable[..., Any], *inputs: Any) -> Any:
    """The autograd function that is both runs (`use_reentrant=True`)."""
    settled = tuple(value.settled() if isinstance(value, Tile) else value for value in inputs)
    function = _on_tiles(run_function, settled)
    return _apply(run_function if function is run_function else _owned(function), *_parts(settled))


def _owned(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tiles are often views where one process has none, and a view that comes out of an autograd
    function cannot be written to. What the first run returns is one of its inputs' only."""

    def run(*given: Any) -> Any:
        out = function(*given)
        if torch.is_grad_enabled():
            return out
        inputs = [_owner(x) for x in given if isinstance(x, Tensor)]

        def own(value: Any) -> Any:
            if not isinstance(value, Tile) or any(_owner(value) is x for x in inputs):
                return value
            return value.detach()

        return tree_map(own, out)

    return run


def _owner(x: Tensor) -> Tensor:
    """The tensor that x is a view of, or x itself. Not by its memory: empty tiles have none."""
    with no_intercept():
        return x if x._base is None else x._base


checkpoint._checkpoint_without_reentrant_generator = _keeping_parts
checkpoint.CheckpointFunction.apply = _run_on_parts  # type: ignore[method-assign]


_describe = checkpoint._allowed_determinism_checks_to_fns[checkpoint._DEFAULT_DETERMINISM_MODE]


def _described(x: Tensor) -> Any:
    """What both runs must agree on: sizes of parts, since a saved part may become a tile later."""
    with no_intercept():
        return _describe(x)


checkpoint._allowed_determinism_checks_to_fns[checkpoint._DEFAULT_DETERMINISM_MODE] = _described
