"""How wide the margins of a group of layers must be, found in a dry run.

The group runs once on the meta device with tiles that note which operator reads which of them,
and through which windows. Going back from the end, the windows say how far beyond its own region
each tile has to be known:

    needs of the input  ◀── window ◀── window ◀── own region of the output

Nothing here computes pixels, and nothing depends on its answer but how often neighbours are asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..comm.communicator import Communicator, Nobody
from ..geometry import Box, Interval, SlidingWindow
from .margin import POINTWISE, QUESTIONS, USES_MARGINS, Boxes, broadcasts
from .placement import Placement
from .regions import Kernel, Native, Windows, plan, windowed
from .registry import HANDLERS, answer
from .tile import Tile, alias, wrap
from .twin import meta_twin


@dataclass
class Step:
    """One operator that margins can pass: the values it reads, the one it makes, its windows."""

    inputs: tuple[int, ...]
    output: int
    before: Placement
    windows: Windows | None


@dataclass
class Trace:
    """What a dry run notes. Values are numbered; those written in place keep their number."""

    steps: list[Step] = field(default_factory=list)
    own: list[Boxes] = field(default_factory=list)  # of every value, without a margin
    windows: Windows | None = None

    def number(self, placement: Placement) -> int:
        self.own.append(placement.layout.boxes)
        return len(self.own) - 1

    def own_part(self, tile: Tile) -> None:
        """All of it (`Margin.own_part`)."""
        return

    def windowed(
        self, tile: TracedTile, windows: Windows, kernel: Kernel, fill: float, native: Native | None
    ) -> Tile:
        """Where a `Margin` would look at its pixels (`regions.windowed`)."""
        self.windows = windows
        return windowed(_plain(tile), windows, kernel, fill)


class TracedTile(Tile):
    """A tile of the dry run."""

    margin: Trace
    number: int

    def maker(self) -> Callable[[Tensor], Tile]:
        placement, trace = self.placement, self.margin
        return lambda local: _traced(wrap(alias(local), placement), trace)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler, kwargs = HANDLERS.get(func), kwargs or {}
        if handler in QUESTIONS:
            return answer(func, args, kwargs, Tile)
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        operands = [t for t in tensors if isinstance(t, TracedTile)]
        trace, placement = operands[0].margin, operands[0].placement
        trace.windows = None
        if handler in POINTWISE and _fit_together(tensors, placement):
            out = _pointwise(func, args, kwargs)
        elif handler in USES_MARGINS - POINTWISE:
            out = answer(func, args, kwargs, Tile)
        else:
            args, kwargs = tree_map(_plain, (args, kwargs))
            return tree_map(lambda v: _traced(v, trace), answer(func, args, kwargs, Tile))
        if not isinstance(out, Tile):
            return out
        result = _traced(out, trace)
        inputs = tuple(t.number for t in operands)
        trace.steps.append(Step(inputs, result.number, placement, trace.windows))
        return result


def _traced(value: Any, trace: Trace) -> Any:
    if not isinstance(value, Tile) or isinstance(value, TracedTile):
        return value
    value.__class__ = TracedTile
    tile: TracedTile = value  # type: ignore[assignment]
    tile.margin, tile.number = trace, trace.number(tile.placement)
    return tile


def _plain(value: Any) -> Any:
    return wrap(alias(value), value.placement) if isinstance(value, TracedTile) else value


def _fit_together(tensors: list[Tensor], placement: Placement) -> bool:
    return all(
        t.placement == placement if isinstance(t, Tile) else broadcasts(t, placement)
        for t in tensors
    )


def _pointwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On the parts as plain tensors: PyTorch's meta kernels in Python ask a tensor for its
    `layout`, which for a tile is something else."""
    tiles = {id(v): v for v in tree_leaves((args, kwargs)) if isinstance(v, TracedTile)}
    parts = {key: alias(tile) for key, tile in tiles.items()}
    args, kwargs = tree_map(lambda v: parts.get(id(v), v), (args, kwargs))
    out = func(*args, **kwargs)
    for key, part in parts.items():
        if out is part:  # written in place
            return tiles[key]
    placement = next(iter(tiles.values())).placement
    return wrap(out, placement) if isinstance(out, Tensor) else out


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
    placement = step.before
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


def _needs(trace: Trace) -> list[Boxes] | None:
    """The boxes of every value, on all ranks; None where a rank is empty: that is not fused."""
    needs = list(trace.own)
    if any(box.empty for boxes in needs for box in boxes):
        return None
    changed = True
    while changed:  # once more where a value was written in place
        changed = False
        for step in reversed(trace.steps):
            wanted = _read(needs[step.output], step)
            for value in step.inputs:
                wider = _hull(needs[value], wanted)
                changed |= wider != needs[value]
                needs[value] = wider
    return needs


def _rounded(boxes: Boxes, trace: Trace) -> Boxes:
    """Begin where the group's strides do, so that kernels can pad wide tiles by themselves."""
    strides = [1] * len(boxes[0])
    for step in trace.steps:
        for dim, window in step.windows or ():
            if isinstance(window, SlidingWindow):
                strides[step.before.dims.index(dim)] *= window.stride

    def down(part: Interval, stride: int) -> Interval:
        return Interval(part.start // stride * stride, part.stop)

    return tuple(
        Box(tuple(down(part, n) for part, n in zip(box, strides, strict=True))) for box in boxes
    )


def _halos(trace: Trace, entering: set[int]) -> int:
    """How many halos the margins of the tiles that enter take the place of."""
    wide, found = set(entering), 0
    for step in trace.steps:
        if not wide.isdisjoint(step.inputs):
            wide.add(step.output)
            found += bool(step.windows) and not plan(step.before, step.windows).moves.is_local
    return found


def entering(module: nn.Module, tiles: Sequence[Tile], call: Any) -> list[Boxes]:
    """The boxes that `tiles` should hold when `call(module, tiles)` begins: a dry run.

    Nothing is computed, sent, drawn or hooked. Where a rank would have nothing, and where the
    margins would take as many exchanges as the halos do, these are the own boxes.
    """
    silent: dict[int, Communicator] = {}
    trace = Trace()

    def ghost(tile: Tile) -> TracedTile:
        old = tile.placement
        comm = silent.setdefault(id(old.comm), Nobody(old.comm.rank, old.comm.size))
        placement = Placement(old.layout, old.dims, comm, old.joined)
        traced: TracedTile = _traced(wrap(alias(tile).detach().to("meta"), placement), trace)
        return traced

    ghosts = [ghost(tile) for tile in tiles]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say, the real run says
        call(meta_twin(module), ghosts)
    own = [tile.placement.layout.boxes for tile in tiles]
    needs = _needs(trace)
    if needs is None:
        return own
    wider = [needs[g.number] != boxes for g, boxes in zip(ghosts, own, strict=True)]
    if _halos(trace, {g.number for g in ghosts}) <= sum(wider):
        return own
    return [_rounded(needs[tile.number], trace) for tile in ghosts]
