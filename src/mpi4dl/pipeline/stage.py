"""One stage as this rank runs it: its layers, and what it keeps of a micro-batch for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from ..spatial.fused_halo import FusedHalo
from .description import Description
from .plan import Plan
from .settings import StageKind
from .split_backward import SplitBackward

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Work:
    """A micro-batch on a stage, between its forward and its backward."""

    entrances: list[Tensor]
    """Leaves: where the gradient of the stage's input will be."""
    description: Description | None = None
    outputs: list[Tensor] = field(default_factory=list)
    """This rank's part of each, or the loss."""
    gradients: list[Tensor] = field(default_factory=list)
    """Of those outputs that want one."""
    second_part: SplitBackward | None = None

    def backward(self) -> list[Tensor]:
        """Everything: parameters get their gradients, and the input's are returned."""
        roots = [output for output in self.outputs if output.requires_grad]
        if roots:
            torch.autograd.backward(roots, self.gradients)
        return self._done()

    def backward_of_input(self) -> list[Tensor]:
        """The input's gradient; what the parameters need for theirs is kept."""
        roots = [output for output in self.outputs if output.requires_grad]
        if roots:
            self.second_part = SplitBackward(roots, self.gradients, self.entrances)
        return self._done()

    def backward_of_parameters(self) -> None:
        if self.second_part is not None:
            self.second_part.finish()
            self.second_part = None

    def _done(self) -> list[Tensor]:
        inputs = [x.grad if x.grad is not None else torch.zeros_like(x) for x in self.entrances]
        self.outputs.clear()
        self.gradients.clear()
        self.entrances.clear()
        return inputs


class StageLayers:
    """A stage's layers in the groups in which they are run."""

    def __init__(self, plan: Plan, stage: int, layers: nn.Sequential, device: torch.device) -> None:
        self.module = layers
        self._half = _HALF.get(plan.precision)
        self._device = device
        fused = plan.fused_layers if plan.halo_d2 and plan.kind(stage) is StageKind.SPATIAL else 0
        again = int(plan.checkpoint_activations)
        units: list[nn.Module] = list(layers)
        if fused:
            units = [FusedHalo(_row(group)) for group in _groups(units, fused)]
        # As many layers again as were asked for, in whole units.
        size = max(1, again // fused) if fused else again
        self._calls: list[Callable[[Any], Any]] = (
            [_recomputed(_row(group)) for group in _groups(units, size)] if again else list(units)
        )

    def __call__(self, value: Any) -> Any:
        with self.precision():
            for call in self._calls:
                value = call(value)
        return value

    @contextmanager
    def precision(self) -> Iterator[None]:
        if self._half is None:
            yield
            return
        with torch.autocast(self._device.type, self._half):
            yield


def _groups(layers: Sequence[nn.Module], size: int) -> Iterator[Sequence[nn.Module]]:
    for start in range(0, len(layers), size):
        yield layers[start : start + size]


def _row(layers: Sequence[nn.Module]) -> nn.Module:
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def _recomputed(module: nn.Module) -> Callable[[Any], Any]:
    """Activations are computed again in backward. Any nesting of tensors passes a checkpoint."""

    def call(value: Any) -> Any:
        leaves, structure = tree_flatten(value)

        def of_leaves(*given: Any) -> Any:
            return module(tree_unflatten(list(given), structure))

        return checkpoint(of_leaves, *leaves, use_reentrant=False)

    return call
