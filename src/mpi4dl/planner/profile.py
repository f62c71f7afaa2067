"""A model's costs in any plan, by dry runs: nothing is allocated, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..geometry import Box, Layout
from ..pipeline.arrangement import Arrangement, Signature, arriving, feeding
from ..pipeline.description import Description, Leaf, described
from ..pipeline.layers import named_layers
from ..pipeline.partition import partition
from ..pipeline.plan import Plan
from ..pipeline.stage import StageLayers
from ..schedule import Kind
from ..spatial.tile import Tile
from ..spatial.twin import meta_twin
from .costs import StageCosts
from .recorder import DryCommunicator, Workspace, dry
from .trace import Trace, traced
from .workspace import cpu_workspace

_META = torch.device("meta")


@dataclass(frozen=True)
class _Key:
    """What a unit's trace depends on."""

    layers: tuple[int, ...]
    """The kinds of its layers: many layers of a model are alike."""
    fused: bool
    again: int
    split: bool
    incoming: tuple[Any, ...]
    rank: int
    ranks: int


class Profile:
    """Of a model for images of a shape, `(channels, height, width)` or with other dimensions."""

    def __init__(
        self,
        model: nn.Module,
        image: Sequence[int],
        split_points: Sequence[str] | None = None,
        workspace: Workspace = cpu_workspace,
        loss: bool = True,
    ) -> None:
        self.image = tuple(image)
        self._model = meta_twin(model)
        self._split_points = split_points
        self.layers = [layer for _, layer in named_layers(self._model, split_points)]
        self._kinds = kinds(self.layers)
        self._workspace, self._loss = workspace, loss
        self._traces: dict[_Key, Trace] = {}

    def balanced(self, plan: Plan) -> Plan:
        """With the layers of every stage."""
        stages = partition(self._model, plan, self._split_points, example=(1, *self.image))
        return replace(plan, balance=tuple(map(len, stages)))

    def layer_costs(self, measure: Callable[[StageCosts], float]) -> tuple[float, ...]:
        """Something of each layer, by itself, for one image on one rank."""
        alone = Plan(split_size=len(self.layers), balance=(1,) * len(self.layers))
        return tuple(map(measure, self.stages(alone, 1)))

    def stages(self, plan: Plan, samples: int) -> tuple[StageCosts, ...]:
        """Of micro-batches of so many samples, on the busiest rank of each stage."""
        assert plan.balance is not None
        split = any(a.kind is Kind.WEIGHT for _, a in plan.make_schedule())
        shape = (samples, *self.image)
        signature = Signature(samples, len(self.image) - 1, True, ())
        whole, _ = described(torch.empty(shape, device=_META))
        before = feeding(plan, 0, shape, signature.image_dims)
        incoming = _arranged(whole, [before])
        stages: list[StageCosts] = []
        first = 0
        for stage, count in enumerate(plan.balance):
            costs = self._stage(plan, stage, (first, first + count), incoming, split)
            stages.append(costs)
            first += count
            if stage < plan.split_size - 1:
                out = costs.outgoing
                lies = [
                    arriving(plan, stage + 1, leaf.shape, leaf.before, signature)
                    for leaf in out.tensors
                ]
                incoming = _arranged(out, lies)
        return tuple(stages)

    def _stage(
        self, plan: Plan, stage: int, layers: tuple[int, int], incoming: Description, split: bool
    ) -> StageCosts:
        module = nn.Sequential(*self.layers[slice(*layers)])
        later = split and not any(leaf.wants_gradient for leaf in incoming.tensors)
        again = int(plan.checkpoint_activations)
        split = split and not later and not again
        called = StageLayers(plan, stage, module, _META)
        size = called.layers_of_a_unit
        comm = dry(_busiest(plan, stage, self.image), plan.tiles(stage))
        units = []
        value = incoming
        for number, unit in enumerate(called.units):
            start = layers[0] + number * size
            key = _Key(
                tuple(self._kinds[start : min(start + size, layers[1])]),
                plan.halo_d2 and stage < plan.spatial_size,
                again,
                split,
                _form(value),
                comm.rank,
                comm.size,
            )
            parameters = _trained(self.layers[start : min(start + size, layers[1])])
            units.append(self._trace(key, unit, parameters, value, comm))
            value = units[-1].description
        if stage == plan.split_size - 1 and self._loss:
            key = replace(key, layers=(), incoming=_form(value))
            units.append(self._trace(key, _loss, [], value, comm))
        stays = any(leaf.wants_gradient for leaf in incoming.tensors)
        return StageCosts(tuple(units), incoming, stays, later and not again)

    def _trace(
        self,
        key: _Key,
        unit: Callable[[Any], Any],
        parameters: Sequence[Tensor],
        value: Description,
        comm: DryCommunicator,
    ) -> Trace:
        # What computes again learns in its first run whether its layers write to their input.
        for _ in range((1 + (key.again > 0)) * (key not in self._traces)):
            self._traces[key] = traced(
                unit, parameters, value, comm, split=key.split, workspace=self._workspace
            )
        return self._traces[key]


def kinds(modules: Sequence[nn.Module]) -> list[int]:
    """A number for each, the same for those that compute alike and differ in their weights."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(_kind(module), len(numbers)) for module in modules]


def _kind(module: nn.Module) -> Any:
    """All that can be seen of a module; what cannot be seen through is only like itself."""
    parts: list[Any] = []
    for name, part in module.named_modules():
        parts.append((name, type(part), repr(part) if not part._modules else ""))
        for key, value in vars(part).items():
            if isinstance(value, (int, float, str, tuple, type(None))):
                parts.append((key, value))
            elif not key.startswith("_"):
                parts.append((key, id(value)))
    parts += [(tuple(p.shape), p.dtype, p.requires_grad) for p in module.parameters()]
    return tuple(parts)


def _arranged(value: Description, lies: Sequence[Arrangement | None]) -> Description:
    rest = iter(lies)
    leaves = tuple(
        replace(leaf, before=next(rest)) if isinstance(leaf, Leaf) else leaf
        for leaf in value.leaves
    )
    return Description(value.structure, leaves)


def _form(value: Description) -> tuple[Any, ...]:
    return (str(value.structure), value.leaves)


def _trained(layers: Sequence[nn.Module]) -> list[Tensor]:
    unique = {id(p): p for layer in layers for p in layer.parameters() if p.requires_grad}
    return list(unique.values())


def _busiest(plan: Plan, stage: int, image: tuple[int, ...]) -> int:
    """The tile with the most pixels; of several, the one with the most neighbours."""
    if plan.tiles(stage) == 1 or stage >= plan.spatial_size:
        return 0
    layout: Layout = plan.layout(stage, image[1:])
    whole = Box.full(layout.size)

    def busy(rank: int) -> tuple[int, int]:
        box = layout.boxes[rank]
        pairs = list(zip(box.intervals, whole.intervals, strict=True))
        return box.volume, sum((i.start > o.start) + (i.stop < o.stop) for i, o in pairs)

    return max(range(layout.ranks), key=busy)


def _loss(value: Any) -> Tensor:
    """Cross entropy, of classes or of the classes of pixels: what most train with."""
    if not isinstance(value, Tensor) or value.ndim < 2:
        return value.sum() if isinstance(value, Tensor) else torch.empty((), device=_META)
    if isinstance(value, Tile):  # its rule looks at the labels, and there are none
        return -F.log_softmax(value, 1).mean()
    labels = torch.empty((value.shape[0], *value.shape[2:]), dtype=torch.int64, device=_META)
    return F.cross_entropy(value, labels)
