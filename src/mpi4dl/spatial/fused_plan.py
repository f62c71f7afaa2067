"""What a group of layers does to its tiles, noted in a dry run, and how far each has to be known.

The second half of `fused_halo.py`: nothing here computes pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..comm.communicator import Communicator, Done, Message, Pending, ReduceOp
from ..geometry import Box, Interval
from .convolution import convolution, transposed_convolution
from .elementwise import elementwise, elementwise_inplace
from .metadata import length, numel, pass_through, shape, size, stored_differently
from .normalization import batch_norm
from .placement import Placement
from .pooling import avg_pool, avg_pool1d, max_pool
from .regions import WindowPlan, Windows
from .registry import FUSING
from .tile import Tile, alias, wrap

Boxes = tuple[Box, ...]
QUESTIONS = {pass_through, shape, size, numel, length}
POINTWISE = {elementwise, elementwise_inplace, stored_differently}
WINDOWED = {convolution, transposed_convolution, max_pool, avg_pool, avg_pool1d}


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
class Group:
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


def tiles_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tile]:
    return [a for a in (*args, *kwargs.values()) if isinstance(a, Tile)]


def _broadcasts(plain: Tensor, placement: Placement) -> bool:
    return all(plain.ndim < -d or plain.shape[d] == 1 for d in placement.dims)


def _lets_margins_pass(handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if handler not in POINTWISE | WINDOWED | {batch_norm}:
        return False
    tiles = tiles_in(args, kwargs)
    first = tiles[0].placement
    if first.joined or any(t.placement != first for t in tiles):
        return False
    if handler in POINTWISE:
        plain = [a for a in (*args, *kwargs.values()) if type(a) is not Tile]
        return all(_broadcasts(p, first) for p in plain if isinstance(p, Tensor))
    return len(tiles) == 1


class Recording(Group):
    """The dry run: notes every step."""

    def run(self, func: Any, handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if handler in QUESTIONS:
            return handler(func, *args, **kwargs)
        tiles = tiles_in(args, kwargs)
        step = Step(
            func,
            tuple(self.number(t) for t in tiles),
            before=tuple(t.placement for t in tiles),
            known=_lets_margins_pass(handler, args, kwargs),
        )
        self.steps.append(step)
        if step.known and handler in POINTWISE:
            out, step.in_place = _pointwise_on_meta(func, args, kwargs)
        elif step.known:
            out = handler(func, *args, **kwargs)
            step.known = isinstance(out, Tile) and (handler not in WINDOWED or bool(step.windows))
        else:
            with suspended():
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
    tiles = tiles_in(args, kwargs)
    locals_ = {id(t): alias(t) for t in tiles}

    def plain(value: Any) -> Any:
        return locals_[id(value)] if isinstance(value, Tile) else value

    out = func(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
    for tile in tiles:
        if out is locals_[id(tile)]:
            return tile, True
    return wrap(out, tiles[0].placement) if isinstance(out, Tensor) else out, False


class suspended:  # noqa: N801 - a context manager, used like a function
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


def dry_run(
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
    real = next(t.placement.comm for t in tiles_in(args, kwargs))
    for step in recording.steps:
        step.before = tuple(_on(p, real) for p in step.before)
        step.after = None if step.after is None else _on(step.after, real)
    return recording.steps, needs


def _on(placement: Placement, comm: Communicator) -> Placement:
    return Placement(placement.layout, placement.dims, comm, placement.joined)
