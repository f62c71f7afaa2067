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
from torch.utils.hooks import BackwardHook

from .elementwise import aligned
from .placement import Placement
from .registry import no_intercept, spatial_op
from .tile import Tile, alias, wrap

_backward = torch.autograd.backward


def _local_gradient(tile: Any, gradient: Tensor | None) -> Tensor | None:
    """A gradient for `tile`: a tile, the whole tensor, or (from autograd itself) the local part."""
    if not isinstance(tile, Tile):
        return gradient
    if gradient is None:
        if tile.numel() != 1:  # whatever this rank's part of it is
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return torch.ones_like(alias(tile))
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
            tensors = [alias(t.settled()) if isinstance(t, Tile) else t for t in outputs]
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


OF_ONE_TENSOR = {backward_method, grad, register_hook}
"""Rules for what concerns one node of the graph, and not the values of a tensor."""


# ── hooks of modules on the gradients of their inputs and outputs ────────────────────────────────

Gradients = tuple[Tensor | None, ...]
_backward_hook = BackwardHook.__init__
_setup_input, _setup_output = BackwardHook.setup_input_hook, BackwardHook.setup_output_hook


def _placements(values: Any) -> list[Placement | None]:
    several = values if isinstance(values, tuple) else (values,)
    return [v.placement if isinstance(v, Tile) else None for v in several]


def _as_tiles(gradients: Gradients, placements: list[Placement | None]) -> Gradients:
    pairs = zip(gradients, placements, strict=True)
    return tuple(wrap(alias(g), p) if p and g is not None else g for g, p in pairs)


def _as_parts(gradients: Any, placements: list[Placement | None]) -> Any:
    if not isinstance(gradients, tuple) or len(gradients) != len(placements):
        return gradients  # for PyTorch to find wrong
    pairs = zip(gradients, placements, strict=True)
    return tuple(alias(aligned(g, p)) if p and g is not None else g for g, p in pairs)


def _hooks_on_tiles(self: Any, module: Any, user_hooks: Any, user_pre_hooks: Any) -> None:
    """Module hooks get the gradients of tiles as tiles, as tensor hooks do."""
    self.of_inputs, self.of_outputs = [], []

    def on_tiles(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, inputs: Gradients, outputs: Gradients) -> Any:
            tiles = _as_tiles(inputs, self.of_inputs), _as_tiles(outputs, self.of_outputs)
            return _as_parts(hook(module, *tiles), self.of_inputs)

        return call

    def before_on_tiles(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, outputs: Gradients) -> Any:
            return _as_parts(hook(module, _as_tiles(outputs, self.of_outputs)), self.of_outputs)

        return call

    before = [before_on_tiles(hook) for hook in user_pre_hooks]
    _backward_hook(self, module, [on_tiles(hook) for hook in user_hooks], before)


def _setup_input_hook(self: Any, args: Any) -> Any:
    self.of_inputs = _placements(args)
    return _setup_input(self, args)


def _setup_output_hook(self: Any, args: Any) -> Any:
    self.of_outputs = _placements(args)
    return _setup_output(self, args)


BackwardHook.__init__ = _hooks_on_tiles  # type: ignore[method-assign]
BackwardHook.setup_input_hook = _setup_input_hook  # type: ignore[method-assign]
BackwardHook.setup_output_hook = _setup_output_hook  # type: ignore[method-assign]
