"""What travels between two stages: any nesting of tensors, said in words before it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure, tree_unflatten

from ..comm.communicator import Communicator
from ..spatial.placement import Placement, ordered
from ..spatial.tile import Tile, alias, narrowed, redistribute, separated, wrap
from .arrangement import Arrangement, Shape


@dataclass(frozen=True)
class Leaf:
    """A tensor, whole: what it is, and how it lies on the ranks that have it."""

    shape: Shape
    dtype: torch.dtype
    wants_gradient: bool
    before: Arrangement | None
    final: Shape | None = None
    """Its real shape, if `shape` is not: flattened tiles are taken apart to be moved, and a single
    number is a list of one."""


@dataclass(frozen=True)
class Constant:
    """Anything that is no tensor."""

    value: Any


@dataclass(frozen=True)
class Description:
    structure: TreeSpec
    leaves: tuple[Leaf | Constant, ...]

    def __reduce__(self) -> Any:
        """Sent as an object of the same nesting; PyTorch's own word for that is not made for it."""
        places = tree_unflatten(list(range(len(self.leaves))), self.structure)
        return _nested, (places, self.leaves)

    @property
    def tensors(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Leaf)]

    def __str__(self) -> str:
        texts = [
            f"{leaf.dtype} {leaf.final or leaf.shape}" if isinstance(leaf, Leaf) else str(leaf)
            for leaf in self.leaves
        ]
        return ", ".join(texts)


def _nested(places: Any, leaves: tuple[Leaf | Constant, ...]) -> Description:
    return Description(tree_structure(places), leaves)


def described(value: Any) -> tuple[Description, list[Tensor]]:
    """A stage's output in words, and this rank's part of each of its tensors, in the graph."""
    leaves, structure = tree_flatten(value)
    words: list[Leaf | Constant] = []
    tensors: list[Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            word, tensor = _described(leaf)
            words.append(word)
            tensors.append(tensor)
        else:
            words.append(Constant(leaf))
    return Description(structure, tuple(words)), tensors


def _described(x: Tensor) -> tuple[Leaf, Tensor]:
    final: Shape | None = None
    before: Arrangement | None = None
    if isinstance(x, Tile):
        x = x.settled()
        if x.placement.joined:
            final, x = tuple(x.global_shape), separated(x)
        if x.placement.is_cut:
            before = Arrangement(x.placement.layout, x.placement.dims)
    shape = tuple(x.shape)  # of a tile, that of the whole
    local = alias(x) if isinstance(x, Tile) else x
    if not shape:
        final, shape, local = (), (1,), local.reshape(1)
    return Leaf(shape, local.dtype, local.requires_grad, before, final), local


class Entrance(torch.autograd.Function):
    """Between a leaf, which must not be written to, and a stage's first layer, which may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def entering(
    description: Description,
    parts: list[Tensor],
    has: list[Arrangement | None],
    wants: list[Arrangement | None],
    comm: Communicator,
) -> tuple[Any, list[Tensor]]:
    """A stage's input from this rank's parts, and the leaves at which its gradient will be.

    `has` says how the parts lie on the stage's ranks, and `wants` how they should.
    """
    values: list[Any] = []
    entrances: list[Tensor] = []
    rest = iter(zip(parts, has, wants, strict=True))
    for leaf in description.leaves:
        if isinstance(leaf, Constant):
            values.append(leaf.value)
            continue
        part, here, wanted = next(rest)
        if leaf.wants_gradient and torch.is_grad_enabled():
            entrances.append(part.requires_grad_())
            part = Entrance.apply(part)
        x = rearranged(part, here, wanted, comm)
        values.append(x if leaf.final is None else x.reshape(leaf.final))
    return tree_unflatten(values, description.structure), entrances


def rearranged(
    part: Tensor, here: Arrangement | None, wanted: Arrangement | None, comm: Communicator
) -> Tensor:
    """A part as a tile, arranged as wanted; as a plain tensor, if that is everything."""
    if here is None and wanted is None:
        return part
    if here is None:
        placement = placed(wanted, comm)
        return wrap(narrowed(part, placement), placement)
    tile = wrap(alias(part), placed(here, comm))
    return tile.full_tensor() if wanted is None else redistribute(tile, placed(wanted, comm))


def placed(arrangement: Arrangement | None, comm: Communicator) -> Placement:
    assert arrangement is not None
    return ordered(arrangement.layout, arrangement.dims, comm)
