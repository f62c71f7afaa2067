"""Fused halos: one wide exchange for a group of layers, then no talk between neighbours.

`FusedHalo(module)` runs a module once on the meta device and notes which operator reads which
tile. Going back from the end, the windows say how far beyond its own region each tile has to be
known; the tiles that enter the group are fetched that wide, and everything inside is computed
redundantly in the margins:

    needs of the input  ◀── window ◀── window ◀── own region of the output

Borders of the image get each layer's own padding, and statistics count own pixels only, so the
result is the same. A margin's gradient flows back through the one exchange.

An operator that the group does not know works on own regions, as outside; the margin ends there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..comm.exchange import transfer
from ..geometry import Box, Interval, Transfer
from .fused_plan import POINTWISE, QUESTIONS, Boxes, Group, Step, dry_run, suspended, tiles_in
from .normalization import batch_norm
from .regions import WindowPlan, Windows, plan
from .registry import FUSING, no_intercept
from .tile import Tile, alias, settled, wrap


class Replay(Group):
    """A run of the group: every value is held as far as the plan says."""

    def __init__(self, steps: list[Step], needs: dict[int, Boxes]) -> None:
        super().__init__(steps)
        self._needs = needs
        self._at = -1
        self._entered: dict[int, Tile] = {}

    def run(self, func: Any, handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if handler in QUESTIONS:
            return handler(func, *args, **kwargs)
        numbers = tuple(self.number(t) for t in tiles_in(args, kwargs))
        self._at += 1
        step = self.steps[self._at] if self._at < len(self.steps) else None
        if step is None or step.func is not func or step.inputs != numbers:
            raise RuntimeError(
                "the module did not do what it did when its halos were fused: its steps depend on "
                "values. Use it without FusedHalo"
            )
        entering = step.in_place and any(t.held is None for t in tiles_in(args, kwargs)[:1])
        if not step.known or entering:
            with suspended():
                args, kwargs = tree_map(_settled_if_tile, (args, kwargs))
                out = handler(func, *args, **kwargs)
        else:
            out = self._with_margins(step, handler, args, kwargs)
        if isinstance(out, Tile):
            self._next(out)
        return out

    def _with_margins(
        self, step: Step, handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        rank = step.before[0].comm.rank
        box = self._needs[step.output][rank]
        reach = box if handler in POINTWISE | {batch_norm} else None

        def ready(value: Any) -> Any:
            if not isinstance(value, Tile):
                return value
            wide = self._widened(value)
            return wide if reach is None else _cropped(wide, reach)

        args = tuple(ready(a) for a in args)
        kwargs = {k: ready(v) for k, v in kwargs.items()}
        if handler in POINTWISE:
            with no_intercept():
                out = step.func(*args, **kwargs)
            if not isinstance(out, Tile):
                assert step.after is not None
                out = wrap(out, step.after)
        else:
            out = handler(step.func, *args, **kwargs)
        out.held = box
        return out

    def _widened(self, tile: Tile) -> Tile:
        """A value that enters the group from outside, fetched as wide as it is needed."""
        if tile.held is not None:
            return tile
        value = self.number(tile)
        if value not in self._entered:
            placement, boxes = tile.placement, self._needs[value]
            moves = Transfer(placement.layout, boxes)
            local = transfer(alias(tile), moves, placement.dims, placement.comm)
            wide = wrap(alias(local), placement)
            wide.held, wide.value = boxes[placement.comm.rank], tile.value
            self._entered[value] = wide
        return self._entered[value]

    def windowed(
        self, tile: Tile, windows: Windows, kernel: Callable[..., Tensor], fill: float
    ) -> Tile:
        step = self.steps[self._at]
        ordinary = plan(tile.placement, windows)
        placement, box = ordinary.placement, self._needs[step.output][tile.placement.comm.rank]
        out = tuple((d, box[placement.dims.index(d)]) for d, _ in windows)
        reads = tuple((d, w.reads(o)) for (d, w), (_, o) in zip(windows, out, strict=True))
        region = _region(tile, dict(reads), fill)
        exact = WindowPlan(placement, ordinary.moves, out, reads, ())
        return wrap(alias(kernel(region, exact)), placement)


def _region(tile: Tile, reads: dict[int, Interval], fill: float) -> Tensor:
    """What a window reads of the region that is held; outside the image, the fill value."""
    local, placement = alias(tile), tile.placement
    assert tile.held is not None
    sides = [0] * (2 * local.ndim)
    for axis, dim in enumerate(placement.dims):
        held = tile.held[axis]
        wanted = reads.get(dim, held)
        inside = wanted.intersect(Interval(0, placement.layout.size[axis]))
        local = local.narrow(dim, inside.start - held.start, inside.size)
        sides[-2 * dim - 2] = inside.start - wanted.start
        sides[-2 * dim - 1] = wanted.stop - inside.stop
    return F.pad(local, sides, value=fill) if any(sides) else local


def _cropped(tile: Tile, box: Box) -> Tile:
    if tile.held == box:
        return tile
    assert tile.held is not None
    local = alias(tile)
    for dim, part, held in zip(tile.placement.dims, box, tile.held, strict=True):
        local = local.narrow(dim, part.start - held.start, part.size)
    out = wrap(alias(local), tile.placement)
    out.held, out.value = box, tile.value
    return out


def _settled_if_tile(value: Any) -> Any:
    return settled(value) if isinstance(value, Tile) else value


class FusedHalo(nn.Module):
    """A module whose halos are fetched in one exchange, wide enough for all its layers.

    Exact, like the module itself. Worth it where waiting for neighbours costs more than computing
    margins twice: a few layers on large tiles. The plan is made once for every shape.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._plans: dict[Any, tuple[list[Step], dict[int, Boxes]] | None] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tiles = [a for a in (*args, *kwargs.values()) if isinstance(a, Tile)]
        if not tiles or not any(t.placement.is_cut for t in tiles) or FUSING.get() is not None:
            return self.module(*args, **kwargs)
        key = (self.training, *((t.placement, tuple(t.shape), t.dtype) for t in tiles))
        if key not in self._plans:
            try:
                self._plans[key] = dry_run(self.module, args, kwargs)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                warnings.warn(
                    f"FusedHalo runs {type(self.module).__name__} unfused: its dry run on the meta "
                    f"device failed with {type(error).__name__}: {error}",
                    stacklevel=2,
                )
                self._plans[key] = None
        found = self._plans[key]
        if found is None:
            return self.module(*args, **kwargs)
        token = FUSING.set(Replay(*found))
        try:
            out = self.module(*args, **kwargs)
        finally:
            FUSING.reset(token)
        return tree_map(_settled_if_tile, out)
