"""Tiles that hold a margin beyond their own region, and operators that use it up.

    ┌───────────────┐
    │ · · · · · · · │   A `WideTile` is an ordinary tile with more around it than it owns. Windows
    │ · ┌───────┐ · │   read the margin instead of asking the neighbours, and leave a narrower one;
    │ · │  own  │ · │   where it does not suffice, or an operator knows nothing of margins, the own
    │ · └───────┘ · │   region is used and the tile is one like all others.
    │ · · · · · · · │
    └───────────────┘

So a margin never decides what is computed, only whether neighbours have to be asked. A margin is a
copy of what others own: when something writes to the own region, the margin is not believed any
more. Borders of the image have no margin; there each layer's own padding lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..comm.exchange import transfer
from ..geometry import Box, Interval, Transfer, Window
from . import autograd, metadata
from .convolution import convolution, transposed_convolution
from .elementwise import elementwise, elementwise_inplace
from .normalization import batch_norm
from .placement import Placement
from .pooling import avg_pool, avg_pool1d, max_pool
from .regions import Kernel, Native, Windows, native_outputs, plan
from .registry import HANDLERS, answer, no_intercept
from .tile import Tile, alias, wrap

Boxes = tuple[Box, ...]

QUESTIONS = {
    *(metadata.pass_through, metadata.shape, metadata.size, metadata.numel, metadata.length)
}
POINTWISE = {elementwise, elementwise_inplace, metadata.stored_differently}
WINDOWED = {convolution, transposed_convolution, max_pool, avg_pool, avg_pool1d}
USES_MARGINS = POINTWISE | WINDOWED | {batch_norm}
OF_ONE_TENSOR = {metadata.data, metadata.grad, metadata.set_grad, *autograd.OF_ONE_TENSOR}
OF_ONE_NODE = {
    *("retain_grad", "register_post_accumulate_grad_hook", "requires_grad_", "detach_"),
    "__set__",
}


@dataclass(frozen=True)
class Margin:
    """What is held: on every rank the box that can be believed; here, the box of the memory."""

    held: Boxes
    extent: Box

    def part(self, box: Box, placement: Placement, ndim: int) -> tuple[slice, ...]:
        """Where `box` lies in the local tensor."""
        index = [slice(None)] * ndim
        for dim, where in zip(placement.dims, box.slices_in(self.extent), strict=True):
            index[dim] = where
        return tuple(index)

    def own_part(self, tile: Tile) -> tuple[slice, ...]:
        return self.part(tile.placement.box, tile.placement, tile.ndim)

    def windowed(
        self,
        tile: WideTile,
        windows: Windows,
        kernel: Kernel,
        fill: float,
        native: Native | None,
    ) -> Tile:
        """The operator without an exchange, if the margins of all ranks allow it."""
        placement = tile.placement
        ordinary = plan(placement, windows)
        held = _made_of(placement, self.held, windows)
        if held is None:
            raise MarginUsedUp
        mine = held[placement.comm.rank]
        extent = None if native is None else native_outputs(placement, self.extent, windows)
        if native is not None and extent is not None:
            out = native(alias(tile))
            _repeat_believed(out, mine, extent, placement.dims)
        else:
            extent = mine
            exact = tuple((d, mine[placement.dims.index(d)]) for d, _ in windows)
            reads = tuple((d, w.reads(o)) for (d, w), (_, o) in zip(windows, exact, strict=True))
            region = _region(tile, dict(reads), fill)
            out = kernel(region, replace(ordinary, out=exact, reads=reads, empty=()))
        return _wide(out, ordinary.placement, Margin(held, extent))


class MarginUsedUp(Exception):
    """A window reads more than the margins hold."""


class WideTile(Tile):
    """A tile with a margin. Made by `widened`; never seen outside of a group with fused halos."""

    margin: Margin
    origin: Tile | None
    """The tile that was widened; None where the own region lies in this tensor's memory."""
    seen: tuple[int, int]
    """The versions of this memory and of the origin's that the margin belongs to."""
    inside: Tile | None
    """The own region of this memory, once somebody has asked for it."""
    given_up: bool

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = HANDLERS.get(func)
        if handler in QUESTIONS and func.__name__ not in OF_ONE_NODE:
            return answer(func, args, kwargs, Tile)
        if handler in USES_MARGINS:
            ready = _with_margins(handler, args, kwargs)
            if ready is not None:
                try:
                    return _applied(func, handler, *ready)
                except MarginUsedUp:
                    pass
        # Hooks, gradients and the like belong to one tensor: from now on that is the own region.
        forget = handler in OF_ONE_TENSOR or func.__name__ in OF_ONE_NODE
        args, kwargs = tree_map(lambda v: _settled(v, forget), (args, kwargs))
        return answer(func, args, kwargs, Tile)

    def settled(self) -> Tile:
        """The ordinary tile that this one is."""
        if self.origin is not None:
            return self.origin
        if self.inside is None:
            local = alias(self)
            own = local[self.margin.own_part(self)]
            self.inside = wrap(alias(own), self.placement)
        return self.inside

    def maker(self) -> Callable[[Tensor], Tile]:
        placement, margin, given_up = self.placement, self.margin, not self.believed()
        own = self.margin.own_part(self) if self.origin is not None else None

        def wide(local: Tensor) -> Tile:
            origin = None if own is None else wrap(local[own].clone(), placement)
            tile = _wide(alias(local), placement, margin, origin)
            tile.given_up = given_up
            return tile

        return wide

    def believed(self) -> bool:
        """Whether nothing but operators that know of margins has written to it."""
        return not self.given_up and self.seen == _versions(self)

    def to_local(self) -> Tensor:
        self.given_up = True  # whoever has the memory may write to it unseen
        return self.settled().to_local()

    def full_tensor(self) -> Tensor:
        return self.settled().full_tensor()

    def redistribute(self, layout: Any) -> Tile:
        return self.settled().redistribute(layout)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"Wide{self.settled()!r}"


def _versions(tile: WideTile) -> tuple[int, int]:
    with no_intercept():
        return tile._version, 0 if tile.origin is None else tile.origin._version


def _wide(
    local: Tensor, placement: Placement, margin: Margin, origin: Tile | None = None
) -> WideTile:
    local.__class__ = WideTile
    tile: WideTile = local  # type: ignore[assignment]
    tile.placement, tile.margin, tile.origin = placement, margin, origin
    tile.inside, tile.given_up = None, False
    tile.seen = _versions(tile)
    return tile


def _settled(value: Any, forget: bool = False) -> Any:
    if not isinstance(value, WideTile):
        return value
    value.given_up |= forget
    return value.settled()


def settled(values: Any) -> Any:
    """Any nesting of values, with ordinary tiles in the place of wide ones."""

    def own(value: Any) -> Any:
        if not isinstance(value, WideTile):
            return value
        tile = value.settled()
        local = alias(tile)
        # A narrow view would keep the margin's memory, and slow down whatever comes after it.
        return tile if local.is_contiguous() else wrap(local.contiguous(), tile.placement)

    return tree_map(own, values)


def widened(tile: Tile, boxes: Boxes) -> Tile:
    """The tile with what `boxes` hold beyond the own regions, fetched in one exchange."""
    placement = tile.placement
    if isinstance(tile, WideTile) or boxes == placement.layout.boxes:
        return tile
    with no_intercept():
        if tile.is_inference():  # whose memory does not count who writes to it
            return tile
    moves = Transfer(placement.layout, boxes)
    local = transfer(alias(tile), moves, placement.dims, placement.comm)
    return _wide(alias(local), placement, Margin(boxes, boxes[placement.comm.rank]), tile)


# ── operators that know of margins ───────────────────────────────────────────────────────────────


def _with_margins(
    handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Margin] | None:
    """The operands, cropped to what all of them hold; None if a margin cannot be used."""
    tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
    tiles = [t for t in tensors if isinstance(t, WideTile)]
    first = tiles[0]
    if first.placement.joined or any(t.placement != first.placement for t in tiles):
        return None
    if not all(t.believed() for t in tiles):
        return None
    if handler not in POINTWISE:
        return (args, kwargs, first.margin) if tensors[0] is first and len(tiles) == 1 else None
    others = [t for t in tensors if not isinstance(t, WideTile)]
    if any(isinstance(t, Tile) or not broadcasts(t, first.placement) for t in others):
        return None
    margins = [t.margin for t in tiles]
    common = Margin(
        reduce(_common, (m.held for m in margins)),
        reduce(Box.intersect, (m.extent for m in margins)),
    )
    if (
        handler is elementwise_inplace
        and tensors[0] is first
        and first.margin.extent != common.extent
    ):
        return None

    def crop(value: Any) -> Any:
        if not isinstance(value, WideTile) or value.margin.extent == common.extent:
            return value
        local = alias(value)
        part = local[value.margin.part(common.extent, value.placement, local.ndim)]
        return _wide(alias(part), value.placement, common)

    return (*tree_map(crop, (args, kwargs)), common)


def broadcasts(plain: Tensor, placement: Placement) -> bool:
    return all(plain.ndim < -d or plain.shape[d] == 1 for d in placement.dims)


@lru_cache(maxsize=4096)
def _common(a: Boxes, b: Boxes) -> Boxes:
    return tuple(one.intersect(two) for one, two in zip(a, b, strict=True))


def _applied(
    func: Any, handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any], margin: Margin
) -> Any:
    target = args[0] if args else next(iter(kwargs.values()))
    origin = target.origin if isinstance(target, WideTile) else None
    out = handler(func, *args, **kwargs)
    if not isinstance(out, Tile):
        return out
    if isinstance(target, WideTile) and out is target:  # written in place
        if origin is not None:  # which everybody else knows the memory of
            handler(func, *_settled_all(args), **_settled_all(kwargs))
        target.margin = margin
        target.inside, target.seen = None, _versions(target)
        return target
    if isinstance(out, WideTile) or handler in WINDOWED:
        return out
    with no_intercept():
        shared = out.untyped_storage()._cdata == target.untyped_storage()._cdata
    if shared and origin is not None:  # a view: of the memory that everybody else knows
        return handler(func, *_settled_all(args), **_settled_all(kwargs))
    return _wide(out, out.placement, margin)


def _settled_all(values: Any) -> Any:
    return tree_map(_settled, values)


# ── windows ──────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def _made_of(placement: Placement, held: Boxes, windows: Windows) -> Boxes | None:
    """What every rank can compute of the output; None if that is less than some rank owns."""
    made = plan(placement, windows).placement.layout.boxes
    by_axis = {placement.dims.index(d): w for d, w in windows}
    found = []
    for mine, have in zip(made, held, strict=True):
        parts = [
            _outputs_within(by_axis[a], part, inside) if a in by_axis else inside
            for a, (part, inside) in enumerate(zip(mine, have, strict=True))
        ]
        if mine.empty or any(part is None for part in parts):
            return None
        found.append(Box(tuple(part for part in parts if part is not None)))
    return tuple(found)


def _outputs_within(window: Window, own: Interval, held: Interval) -> Interval | None:
    """The outputs around `own` that read nothing but `held`, inside the image."""
    whole = Interval(0, window.in_size)

    def fits(start: int, stop: int) -> bool:
        return held.contains(window.reads(Interval(start, stop)).intersect(whole))

    start, stop = own.start, own.stop
    if not fits(start, stop):
        return None
    while start > 0 and fits(start - 1, start):
        start -= 1
    while stop < window.out_size and fits(stop, stop + 1):
        stop += 1
    return Interval(start, stop)


def _repeat_believed(out: Tensor, held: Box, extent: Box, dims: tuple[int, ...]) -> None:
    """Overwrite outputs that read padding in the place of other tiles' pixels.

    Nothing that counts is computed from them, but what is done with them should do no harm: a
    root of zero has an infinite slope. The nearest outputs that can be believed stand in.
    """
    with torch.no_grad():
        for dim, inside, around in zip(dims, held, extent, strict=True):
            low, high = inside.start - around.start, around.stop - inside.stop
            size = around.size
            if low:
                out.narrow(dim, 0, low).copy_(out.narrow(dim, low, 1))
            if high:
                out.narrow(dim, size - high, high).copy_(out.narrow(dim, size - high - 1, 1))


def _region(tile: WideTile, reads: dict[int, Interval], fill: float) -> Tensor:
    """What a window reads of the region that is held; outside the image, the fill value."""
    local, placement = alias(tile), tile.placement
    sides = [0] * (2 * local.ndim)
    for axis, dim in enumerate(placement.dims):
        extent = tile.margin.extent[axis]
        wanted = reads.get(dim)
        if wanted is None:
            wanted = tile.margin.held[placement.comm.rank][axis]
        inside = wanted.intersect(Interval(0, placement.layout.size[axis]))
        if inside.empty:  # a window with nothing in it but padding
            local = local.narrow(dim, 0, 0)
            sides[-2 * dim - 1] = wanted.size
            continue
        local = local.narrow(dim, inside.start - extent.start, inside.size)
        sides[-2 * dim - 2] = inside.start - wanted.start
        sides[-2 * dim - 1] = wanted.stop - inside.stop
    return F.pad(local, sides, value=fill) if any(sides) else local
