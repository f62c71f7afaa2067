"""One stage as this rank runs it: its layers, and what it keeps of a micro-batch for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
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
    splits: bool = True
    """Whether a backward comes in two parts. Where activations are computed again, each part would
    do that once more for every operator, so the first part is all of it."""
    description: Description | None = None
    outputs: list[Tensor] = field(default_factory=list)
    """This rank's part of each, or the loss; until they are passed on."""
    roots: list[GradientEdge] = field(default_factory=list)
    """Where backward begins: at those outputs that want a gradient."""
    gradients: list[Tensor] = field(default_factory=list)
    """Of those outputs that want one."""
    second_part: SplitBackward | None = None

    def give(self, outputs: list[Tensor]) -> None:
        self.outputs = outputs
        self.roots = [get_gradient_edge(output) for output in outputs if output.requires_grad]

    def pass_on(self) -> list[Tensor]:
        """The outputs, which nobody else will ask for: backward needs only the graph."""
        outputs, self.outputs = self.outputs, []
        return outputs

    def backward(self) -> list[Tensor]:
        """Everything: parameters get their gradients, and the input's are returned."""
        if self.roots:
            torch.autograd.backward(self.roots, self.gradients)
        return self._done()

    def backward_of_input(self) -> list[Tensor]:
        """The input's gradient; what the parameters need for theirs is kept."""
        if not self.splits:
            return self.backward()
        if self.roots:
            self.second_part = SplitBackward(self.roots, self.gradients, self.entrances)
        return self._done()

    def backward_of_parameters(self) -> None:
        if self.second_part is not None:
            self.second_part.finish()
            self.second_part = None

    def _done(self) -> list[Tensor]:
        inputs = [x.grad if x.grad is not None else torch.zeros_like(x) for x in self.entrances]
        self.outputs.clear()
        self.roots.clear()
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
        self.recomputes = again > 0
        units: list[nn.Module] = list(layers)
        if fused:
            units = [FusedHalo(_row(group)) for group in _groups(units, fused)]
        # As many layers again as were asked for, in whole units.
        size = max(1, again // fused) if fused else again
        self.units: list[Callable[[Any], Any]] = (
            [_Recomputed(_row(group)) for group in _groups(units, size)] if again else list(units)
        )
        """What is called, one after the other."""
        self.layers_of_a_unit = max(1, fused) * max(1, size)

    def __call__(self, value: Any) -> Any:
        with self.precision():
            for call in self.units:
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


class _Recomputed:
    """Activations are computed again in backward. Any nesting of tensors passes a checkpoint.

    What the layers get must be there for the second time. So if they write to it, as an in-place
    ReLU does, they get a copy: always at first, when it is seen whether they do.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._writes: dict[bool, bool] = {}  # in training, and in evaluation

    def __call__(self, value: Any) -> Any:
        leaves, structure = tree_flatten(value)
        return checkpoint(self._call, structure, *leaves, use_reentrant=False)

    def _call(self, structure: TreeSpec, *leaves: Any) -> Any:
        training = self._module.training
        if self._writes.get(training, True):
            leaves = tuple(x.clone() if isinstance(x, Tensor) else x for x in leaves)
        result = self._module(tree_unflatten(list(leaves), structure))
        written = any(isinstance(x, Tensor) and x._version > 0 for x in leaves)
        self._writes.setdefault(training, written)
        return result
