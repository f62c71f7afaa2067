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

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..comm.communicator import Communicator, Done, Message, Pending, ReduceOp
from ..comm.exchange import transfer
from ..geometry import Box, Interval, Transfer
from .convolution import convolution, transposed_convolution
from .elementwise import elementwise, elementwise_inplace
from .metadata import length, numel, pass_through, shape, size, stored_differently
from .normalization import batch_norm
from .placement import Placement
from .pooling import avg_pool, avg_pool1d, max_pool
from .regions import WindowPlan, Windows, plan
from .registry import FUSING, no_intercept
from .tile import Tile, alias, settled, wrap

Boxes = tuple[Box, ...]
_QUESTIONS = {pass_through, shape, size, numel, length}
_POINTWISE = {elementwise, elementwise_inplace, stored_differently}
_WINDOWED = {convolution, transposed_convolution, max_pool, avg_pool, avg_pool1d}


class _Nobody:
    """The communicator of a dry run: as many ranks, and no messages."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        return Done()

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        return None

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.new_empty((self.size, *tensor.shape))


@dataclass
class Step:
    """One operator of the group: which values it reads and makes, and through which windows."""

    func: Any
    inputs: tuple[int, ...]
    output: int = -1
    before: tuple[Placement, ...] = ()
    after: Placement | None = None
    windows: Windows | None = None
    in_place: bool = False
    known: bool = False  # margins pass through it


@dataclass
class _Group:
    """What a run of the group shares: values get numbers in the order in which they appear."""

    steps: list[Step] = field(default_factory=list)
    values: int = 0

    def number(self, tile: Tile) -> int:
        owner, value = tile.value
        if owner is not self:
            value = self._next(tile)
        return value

    def _next(self, tile: Tile) -> int:
        tile.value = (self, self.values)
        self.values += 1
        return self.values - 1


def _tiles(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tile]:
    return [a for a in (*args, *kwargs.values()) if isinstance(a, Tile)]


def _broadcasts(plain: Tensor, placement: Placement) -> bool:
    return all(plain.ndim < -d or plain.shape[d] == 1 for d in placement.dims)


def _lets_margins_pass(handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if handler not in _POINTWISE | _WINDOWED | {batch_norm}:
        return False
    tiles = _tiles(args, kwargs)
    first = tiles[0].placement
    if first.joined or any(t.placement != first for t in tiles):
        return False
    if handler in _POINTWISE:
        plain = [a for a in (*args, *kwargs.values()) if type(a) is not Tile]
        return all(_broadcasts(p, first) for p in plain if isinstance(p, Tensor))
    return len(tiles) == 1


class Recording(_Group):
    """The dry run: notes every step."""

    def run(self, func: Any, handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if handler in _QUESTIONS:
            return handler(func, *args, **kwargs)
        tiles = _tiles(args, kwargs)
        step = Step(
            func,
            tuple(self.number(t) for t in tiles),
            before=tuple(t.placement for t in tiles),
            known=_lets_margins_pass(handler, args, kwargs),
        )
        self.steps.append(step)
        if step.known and handler in _POINTWISE:
            out, step.in_place = _pointwise_on_meta(func, args, kwargs)
        elif step.known:
            out = handler(func, *args, **kwargs)
            step.known = isinstance(out, Tile) and (handler not in _WINDOWED or bool(step.windows))
        else:
            with _suspended():
                out = handler(func, *args, **kwargs)
        if isinstance(out, Tile):
            step.output, step.after = self._next(out), out.placement
        return out

    def windowed(
        self, tile: Tile, windows: Windows, kernel: Callable[..., Tensor], fill: float
    ) -> WindowPlan | None:
        self.steps[-1].windows = windows
        return None


def _pointwise_on_meta(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, bool]:
    """The result, and whether it is the first operand itself. On plain tensors: PyTorch's meta
    kernels in Python ask a tensor for its `layout`, which for a tile is something else."""
    tiles = _tiles(args, kwargs)
    locals_ = {id(t): alias(t) for t in tiles}

    def plain(value: Any) -> Any:
        return locals_[id(value)] if isinstance(value, Tile) else value

    out = func(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
    for tile in tiles:
        if out is locals_[id(tile)]:
            return tile, True
    return wrap(out, tiles[0].placement) if isinstance(out, Tensor) else out, False


class _suspended:  # noqa: N801 - a context manager, used like a function
    def __enter__(self) -> None:
        self._token = FUSING.set(None)

    def __exit__(self, *exc: object) -> None:
        FUSING.reset(self._token)


# ── how far each value has to be known ───────────────────────────────────────────────────────────


def _hull(a: Boxes, b: Boxes) -> Boxes:
    def join(p: Interval, q: Interval) -> Interval:
        return Interval(min(p.start, q.start), max(p.stop, q.stop))

    return tuple(
        Box(tuple(join(p, q) for p, q in zip(one, two, strict=True)))
        for one, two in zip(a, b, strict=True)
    )


def _read(boxes: Boxes, step: Step) -> Boxes:
    """What `boxes` of a step's output read of its input, inside the image."""
    if not step.windows:
        return boxes
    placement = step.before[0]
    by_axis = {placement.dims.index(d): window for d, window in step.windows}
    return tuple(
        Box(
            tuple(
                by_axis[a].reads(part).intersect(Interval(0, n)) if a in by_axis else part
                for a, (part, n) in enumerate(zip(box, placement.layout.size, strict=True))
            )
        )
        for box in boxes
    )


def _needs(steps: list[Step]) -> dict[int, Boxes] | None:
    """The boxes of every value, on all ranks; None where a rank ends empty: that is not fused."""
    needs: dict[int, Boxes] = {}
    for step in steps:
        for value, placement in zip(step.inputs, step.before, strict=True):
            needs[value] = placement.layout.boxes
        if step.after is not None:
            needs[step.output] = step.after.layout.boxes
    if any(box.empty for boxes in needs.values() for box in boxes):
        return None
    changed = True
    while changed:
        changed = False
        for step in reversed(steps):
            if not step.known:
                continue
            wanted = _read(needs[step.output], step)
            for value in step.inputs:
                wider = _hull(needs[value], wanted)
                changed |= wider != needs[value]
                needs[value] = wider
            if step.in_place and needs[step.output] != needs[step.inputs[0]]:
                changed, needs[step.output] = True, needs[step.inputs[0]]
    return needs


# ── running with margins ─────────────────────────────────────────────────────────────────────────


class Replay(_Group):
    """A run of the group: every value is held as far as the plan says."""

    def __init__(self, steps: list[Step], needs: dict[int, Boxes]) -> None:
        super().__init__(steps)
        self._needs = needs
        self._at = -1
        self._entered: dict[int, Tile] = {}

    def run(self, func: Any, handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if handler in _QUESTIONS:
            return handler(func, *args, **kwargs)
        numbers = tuple(self.number(t) for t in _tiles(args, kwargs))
        self._at += 1
        step = self.steps[self._at] if self._at < len(self.steps) else None
        if step is None or step.func is not func or step.inputs != numbers:
            raise RuntimeError(
                "the module did not do what it did when its halos were fused: its steps depend on "
                "values. Use it without FusedHalo"
            )
        entering = step.in_place and any(t.held is None for t in _tiles(args, kwargs)[:1])
        if not step.known or entering:
            with _suspended():
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
        reach = box if handler in _POINTWISE | {batch_norm} else None

        def ready(value: Any) -> Any:
            if not isinstance(value, Tile):
                return value
            wide = self._widened(value)
            return wide if reach is None else _cropped(wide, reach)

        args = tuple(ready(a) for a in args)
        kwargs = {k: ready(v) for k, v in kwargs.items()}
        if handler in _POINTWISE:
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
                self._plans[key] = _planned(self.module, args, kwargs)
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


def _planned(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Step], dict[int, Boxes]] | None:
    """A dry run on the meta device: nothing is computed, sent, or drawn."""
    silent: dict[int, Communicator] = {}

    def ghost(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        local = alias(value).detach().to("meta") if isinstance(value, Tile) else value.to("meta")
        if not isinstance(value, Tile):
            return local
        old = value.placement
        comm = silent.setdefault(id(old.comm), _Nobody(old.comm.rank, old.comm.size))
        return wrap(local, Placement(old.layout, old.dims, comm, old.joined))

    ghosts = copy.deepcopy(module).to("meta")
    recording = Recording()
    token = FUSING.set(recording)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            ghosts(*tree_map(ghost, args), **tree_map(ghost, kwargs))
    finally:
        FUSING.reset(token)
    needs = _needs(recording.steps)
    if needs is None:
        return None
    real = next(t.placement.comm for t in _tiles(args, kwargs))
    for step in recording.steps:
        step.before = tuple(_on(p, real) for p in step.before)
        step.after = None if step.after is None else _on(step.after, real)
    return recording.steps, needs


def _on(placement: Placement, comm: Communicator) -> Placement:
    return Placement(placement.layout, placement.dims, comm, placement.joined)
