"""Starting backward from tiles.

Gradients inside the autograd graph are plain local tensors; tiles say the global shape. The
entry points of autograd compare the two, so tiles are handed to them as the local tensors they
are. `torch.autograd.backward` cannot be intercepted, and reentrant checkpointing calls it with
tiles; therefore the function itself is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .elementwise import aligned
from .registry import no_intercept, spatial_op
from .tile import Tile, alias, wrap

_backward = torch.autograd.backward


def _local_gradient(tile: Any, gradient: Tensor | None) -> Tensor | None:
    """A gradient for `tile`: a tile, the whole tensor, or (from autograd itself) the local part."""
    if gradient is None or not isinstance(tile, Tile):
        return gradient
    with no_intercept():
        if not isinstance(gradient, Tile) and gradient.shape == tile.shape:
            return gradient
    return alias(aligned(gradient, tile.placement))


def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    """`torch.autograd.backward`, which also takes tiles."""
    outputs = [tensors] if not isinstance(tensors, Sequence) else list(tensors)
    if any(isinstance(t, Tile) for t in outputs):
        given = grad_tensors if isinstance(grad_tensors, Sequence) else [grad_tensors]
        gradients = list(given) if grad_tensors is not None else [None] * len(outputs)
        grad_tensors = [_local_gradient(t, g) for t, g in zip(outputs, gradients, strict=True)]
        with torch.enable_grad():  # reentrant checkpointing calls this while gradients are off
            tensors = [alias(t) if isinstance(t, Tile) else t for t in outputs]
    _backward(tensors, grad_tensors, *args, **kwargs)


torch.autograd.backward = backward


@spatial_op(torch.Tensor.backward)
def backward_method(
    func: Any, tile: Tensor, gradient: Tensor | None = None, *args: Any, **kwargs: Any
) -> None:
    backward(tile, gradient, *args, **kwargs)


@spatial_op(torch.autograd.grad)
def grad(
    func: Any, outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any
) -> tuple[Tensor | None, ...]:
    """The gradients of tiles are tiles."""
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs
    gradients = [
        _local_gradient(t, g) for t, g in zip(outputs, given or [None] * len(outputs), strict=True)
    ]
    with no_intercept():
        found = func(
            [alias(t) if isinstance(t, Tile) else t for t in outputs],
            inputs,
            gradients,
            *args,
            **kwargs,
        )
    return tuple(
        wrap(alias(g), x.placement) if g is not None and isinstance(x, Tile) else g
        for g, x in zip(found, inputs, strict=True)
    )


@spatial_op(torch.Tensor.register_hook)
def register_hook(func: Any, tile: Tile, hook: Callable[[Tensor], Tensor | None]) -> Any:
    """The hook gets the gradient as a tile: `g / g.norm()` means that of the whole image."""
    placement = tile.placement

    @wraps(hook)
    def on_tiles(gradient: Tensor) -> Tensor | None:
        result = hook(wrap(alias(gradient), placement))
        return None if result is None else alias(aligned(result, placement))

    with no_intercept():
        return func(tile, on_tiles)
