"""A loss or a gradient that is infinite or no number: nothing is changed, and a layer is named.

The model's buffers are kept from before the step. Where the batch turns out bad, they are put back,
and the batch is run once more, with a hook on every layer that looks for the first such value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..comm.objects import shared
from ..errors import PlanError
from ..spatial.tile import Tile
from .engine import Engine, Step
from .full_state import named_parameters
from .setup import Setup

Policy = Literal["raise", "skip", "stop", "ignore"]


def checked(policy: str) -> None:
    if policy not in ("raise", "skip", "stop", "ignore"):
        raise PlanError(f"nonfinite is {policy!r}; it must be 'raise', 'skip', 'stop' or 'ignore'")


@contextmanager
def kept(setup: Setup, wanted: bool) -> Iterator[Callable[[], None]]:
    """Gives a function that puts the buffers of this rank's stages back; if wanted."""
    modules = setup.modules.values() if wanted else ()
    buffers = [buffer for module in modules for buffer in module.buffers()]
    before = [buffer.clone() for buffer in buffers]

    def put_back() -> None:
        with torch.no_grad():
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(old)

    yield put_back


def place(setup: Setup, engine: Engine, again: Callable[[], Step]) -> str:
    """Where the first such value appears when the batch is run `again`. Collective.

    In forward: in the first stage that has one, after the fewest layers. If there is none there,
    in backward: the last layer whose gradient has one.
    """
    search = _Search(engine)
    with search.looking(setup):
        step = again()
    last = setup.plan.split_size - 1
    for micro_batch, loss in sorted(step.losses.items()):
        if not loss.isfinite():
            search.found.append(_Found(last, 2**31, f"the loss itself, micro-batch {micro_batch}"))
    own = _first(search.found)
    first = _first([found for found in shared(own, setup.world, setup.device) if found])
    if first is not None:
        return first.text
    backward = _first([f for f in shared(_gradient(setup), setup.world, setup.device) if f])
    if backward is not None:
        return backward.text
    return "nowhere, when the batch was run once more"


@dataclass(frozen=True)
class _Found:
    stage: int
    order: int
    text: str


def _first(found: list[_Found]) -> _Found | None:
    return min(found, key=lambda one: (one.stage, one.order), default=None)


def _gradient(setup: Setup) -> _Found | None:
    found = [
        _Found(-stage, -order, f"the gradient of {name} (stage {stage}){_counted(parameter.grad)}")
        for stage, module in setup.modules.items()
        for order, (name, parameter) in enumerate(named_parameters([module]).items())
        if parameter.grad is not None and not parameter.grad.isfinite().all()
    ]
    return _first(found)


@dataclass
class _Search:
    """Of one rank. A forward is followed from its first layer to the first bad value."""

    engine: Engine
    found: list[_Found] = field(default_factory=list)
    _at: Any = None
    _order: int = 0

    @contextmanager
    def looking(self, setup: Setup) -> Iterator[None]:
        with ExitStack() as stack:
            for stage, module in setup.modules.items():
                for name, layer in module.named_modules():
                    if layer is not module:
                        for handle in self._hooks(stage, name, layer):
                            stack.callback(handle.remove)
            yield

    def _hooks(self, stage: int, name: str, layer: nn.Module) -> list[Any]:
        about = f"{name} ({type(layer).__name__})"

        def before(module: nn.Module, inputs: Any) -> None:
            self._look(stage, f"the input of {about}", inputs)
            for label, parameter in module.named_parameters(recurse=False):
                self._look(stage, f"the parameter {name}.{label} itself", parameter)

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            self._look(stage, f"the output of {about}", output)

        return [layer.register_forward_pre_hook(before), layer.register_forward_hook(after)]

    def _look(self, stage: int, what: str, values: Any) -> None:
        action = self.engine.at
        if action is not self._at:
            self._at, self._order = action, 0
        self._order += 1
        for value in tree_leaves(values):
            text = _counted(value)
            if text and action is not None:
                where = f"stage {stage}, micro-batch {action.micro_batch}"
                self.found.append(_Found(stage, self._order, f"{what} ({where}){text}"))


def _counted(value: Any) -> str:
    """Nothing, if all is well."""
    value = value.to_local() if isinstance(value, Tile) else value
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        return ""
    bad = int((~value.detach().isfinite()).sum())
    return f": {bad} of {value.numel()} values are infinite or no number" if bad else ""
