"""How many bytes each rank will send in a step: from the plan and the geometry of the layers alone.

The model runs once on the meta device, where nothing is computed and nothing can be sent. Before
each layer that has a window, its kernel, stride and padding say what every tile will read, and so
what its neighbours send; a group of fused layers says that once, by how wide its tiles are.

For sizes at which all layers keep tiles aligned, such as multiples of 32 in every tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mpi4dl import FusedHalo, Plan, Tile
from mpi4dl.comm.communicator import Nobody
from mpi4dl.geometry import SlidingWindow, Transfer, WholeWindow, conv_size, pool_size
from mpi4dl.pipeline import partition
from mpi4dl.pipeline.arrangement import Arrangement, Signature, arriving, crossing, feeding
from mpi4dl.pipeline.stage import StageLayers
from mpi4dl.spatial import wrap
from mpi4dl.spatial.placement import Placement, ordered
from mpi4dl.spatial.regions import plan as window_plan
from mpi4dl.train.traffic import Traffic

FLOAT = 4
"""Bytes of a number."""

META = torch.device("meta")
SHARED = FLOAT * 2 * 2
"""Bytes that a normalisation tells of a channel: mean and variance; in backward, two sums."""


def predicted(plan: Plan, model: nn.Module, shape: tuple[int, ...]) -> list[Traffic]:
    """What every rank sends while the plan trains a batch of images (N, C, H, W). `model` is on the
    meta device."""
    if plan.replicas > 1 or plan.mesh.directions > 1:
        raise ValueError("only for one replica and one direction")
    found = [Traffic()] * plan.world_size
    stages = partition(model, plan, example=shape)
    for samples in plan.split_batch(shape[0])[0]:
        image = torch.empty(samples, *shape[1:], device=META)
        for rank, more in _micro_batch(plan, stages, image):
            found[rank] += more
    for stage, module in enumerate(stages):
        ranks = plan.mesh.ranks(0, 0, stage)
        for rank in ranks if len(ranks) > 1 else ():
            found[rank] += Traffic(gradients=FLOAT * _added_up(module))
    return found


def _added_up(stage: nn.Module) -> int:
    """Numbers: gradients and whether there are any, moves of running statistics and how many."""
    parameters = [p.numel() + 1 for p in stage.parameters()]
    norms = [2 * m.num_features + 1 for m in stage.modules() if isinstance(m, nn.BatchNorm2d)]
    return sum(parameters) + sum(norms)


def _micro_batch(
    plan: Plan, stages: Sequence[nn.Sequential], value: Any
) -> Iterator[tuple[int, Traffic]]:
    """Pairs of a rank and what it sends."""
    key = Signature(value.shape[0], image_dims=2, training=True, inputs=None)
    for stage, module in enumerate(stages):
        ranks = plan.mesh.ranks(0, 0, stage)
        leaves, structure = tree_flatten(value)
        ghosts, comm = [], Nobody(0, len(ranks))
        for leaf in leaves:
            before = _arrangement(leaf)
            shape = tuple(leaf.shape)
            after = (
                arriving(plan, stage, shape, before, key)
                if stage
                else feeding(plan, stage, shape, key.image_dims)
            )
            if stage:
                yield from _crossing(plan, stage, leaf, before, after)
            ghosts.append(_ghost(shape, after, comm).requires_grad_(leaf.requires_grad))
        walk = _Walk(module, len(ranks))
        with walk.watching():
            value = StageLayers(plan, stage, module, META)(tree_unflatten(ghosts, structure))
        yield from zip(ranks, walk.traffic(), strict=True)


def _arrangement(value: Tensor) -> Arrangement | None:
    if isinstance(value, Tile) and value.placement.is_cut:
        return Arrangement(value.placement.layout, value.placement.dims)
    return None


def _ghost(shape: tuple[int, ...], where: Arrangement | None, comm: Nobody) -> Tensor:
    if where is None:
        return torch.empty(shape, device=META)
    placement = ordered(where.layout, where.dims, comm)
    return wrap(torch.empty(placement.local_shape(shape), device=META), placement)


def _crossing(
    plan: Plan, stage: int, leaf: Tensor, before: Arrangement | None, after: Arrangement | None
) -> Iterator[tuple[int, Traffic]]:
    """From the stage before this one, and its gradient back."""
    ranks = [*plan.mesh.ranks(0, 0, stage - 1), *plan.mesh.ranks(0, 0, stage)]
    targets = len(plan.mesh.ranks(0, 0, stage))
    moves = crossing(tuple(leaf.shape), before, len(ranks) - targets, after, targets)
    for rank, sent in zip(ranks, _sent(moves, back=leaf.requires_grad), strict=True):
        yield rank, Traffic(transfer=FLOAT * sent)


def _sent(moves: Transfer, back: bool) -> list[int]:
    """Cells that each rank sends; with `back`, also those of the gradients of what it received."""
    ranks = range(moves.layout.ranks)
    there = [sum(m.box.volume for m in moves.outgoing(r) if m.target != r) for r in ranks]
    home = [sum(m.box.volume for m in moves.incoming(r) if m.source != r) for r in ranks]
    return [a + b * back for a, b in zip(there, home, strict=True)]


class _Walk:
    """Looks at what the layers of a stage are called with."""

    def __init__(self, stage: nn.Module, ranks: int) -> None:
        self._layers = set(stage.modules())
        self._groups: set[nn.Module] = set()
        self._halo = [0] * ranks
        self._told = 0

    def traffic(self) -> list[Traffic]:
        return [Traffic(halo=n, statistics=self._told) for n in self._halo]

    @contextmanager
    def watching(self) -> Iterator[None]:
        handle = register_module_forward_pre_hook(self._before)
        try:
            yield
        finally:
            handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, FusedHalo):
            self._groups.add(module.module)
            return
        tiles = [v for v in tree_leaves(args) if isinstance(v, Tile) and v.placement.is_cut]
        wide = [tile for tile in tiles if tile.margin is not None]
        for tile in wide if module in self._groups else ():
            self._count(tile, Transfer(tile.placement.layout, tile.margin.held))
        if module in self._layers and tiles:
            self._layer(module, tiles[0])

    def _layer(self, module: nn.Module, tile: Tile) -> None:
        if isinstance(module, nn.BatchNorm2d):
            self._told += SHARED * module.num_features
        elif isinstance(
            module, nn.AdaptiveAvgPool2d
        ):  # of the whole image: sums, and their gradients
            self._told += FLOAT * 2 * prod(tile.shape[:-2])
        elif isinstance(module, (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)) and tile.margin is None:
            self._count(tile, window_plan(tile.placement, _windows(module, tile)).moves)

    def _count(self, tile: Tile, moves: Transfer) -> None:
        deep = prod(tile.shape) // tile.placement.total  # numbers in a cell of the layout
        for rank, cells in enumerate(_sent(moves, back=tile.requires_grad)):
            self._halo[rank] += FLOAT * deep * cells


def _windows(module: Any, tile: Tile) -> tuple[tuple[int, SlidingWindow | WholeWindow], ...]:
    placement: Placement = tile.placement
    return tuple(
        (dim, _window(module, dim, tile.shape[dim], dim in placement.cut_dims))
        for dim in (-2, -1)
        if dim in placement.dims
    )


def _window(module: Any, dim: int, size: int, cut: bool) -> SlidingWindow | WholeWindow:
    def along(name: str) -> int:
        value = getattr(module, name, 1)
        return value if isinstance(value, int) else value[dim]

    numbers = [along(name) for name in ("kernel_size", "stride", "padding", "dilation")]
    ceil = getattr(module, "ceil_mode", None)
    out = conv_size(size, *numbers) if ceil is None else pool_size(size, *numbers, ceil)
    return SlidingWindow(size, out, *numbers) if cut else WholeWindow(size, out)
