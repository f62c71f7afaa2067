"""The layers of a model: what `balance` counts, and what a stage is made of."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..errors import PlanError
from .tracing import traced_pieces

Named = tuple[str, nn.Module]
"""A layer and its path in the model."""


def layers_of(model: nn.Module, split_points: Sequence[str] | None = None) -> tuple[nn.Module, ...]:
    """The layers in order; each takes what the one before it gives, and they are the model.

    An `nn.Sequential` gives its children. Any other module either

    * has a method `layers()` that returns its submodules in the order in which they are called, or
    * is traced and cut before the submodules that `split_points` names.
    """
    return tuple(layer for _, layer in named_layers(model, split_points))


def named_layers(model: nn.Module, split_points: Sequence[str] | None = None) -> tuple[Named, ...]:
    """`layers_of` with their paths. The layers are the model's own modules, no copies."""
    _refuse_hooks(model)
    if split_points:
        pieces = traced_pieces(model, split_points)
        return tuple((f"piece{number}", piece) for number, piece in enumerate(pieces))
    if callable(getattr(type(model), "layers", None)):
        return _by_protocol(model)
    if type(model).forward is nn.Sequential.forward:
        return tuple((name, m) for name, m in model._modules.items() if m is not None)
    names = [name for name, _ in model.named_children()]
    such_as = f", such as [{names[len(names) // 2]!r}]" if names else ""
    raise PlanError(
        f"{type(model).__name__} is no nn.Sequential, so its layers are not known: name the "
        f"submodules that begin a new stage (split_points{such_as}), or give it a method layers()"
    )


def _by_protocol(model: nn.Module) -> tuple[Named, ...]:
    paths = {module: path for path, module in model.named_modules()}
    layers: list[Named] = []
    for number, layer in enumerate(model.layers()):  # type: ignore[operator]
        if layer in paths:
            layers.append((paths[layer], layer))
        elif any(True for _ in layer.parameters()) or any(True for _ in layer.buffers()):
            raise PlanError(
                f"layer {number} of {type(model).__name__}.layers(), {type(layer).__name__}, has "
                "parameters or buffers, and is no submodule: make it an attribute of the model"
            )
        else:
            layers.append((f"layer{number}", layer))
    for path, _ in layers:
        for other, _ in layers:
            if f"{other}.".startswith(f"{path}.") and path != other:
                raise PlanError(f"the layer {other!r} is inside of the layer {path!r}: name one")
    return tuple(layers)


def _refuse_hooks(model: nn.Module) -> None:
    """The whole model is never called, so what hangs on its call would silently not happen."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        if getattr(model, name, None):
            raise PlanError(
                f"{type(model).__name__} has hooks ({name[1:]}), and is never called as a whole: "
                "register them on its layers"
            )
