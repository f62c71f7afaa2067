"""Moving, joining and taking apart dimensions.

Moving (permute, unsqueeze, ...) renames the dimensions of the axes. Reshaping matches the target
shape to the factors of the dimensions, from the left:

    (N, C, H, W)  --view(N, C, H//2, 2, W)-->  N | C | H//2 | 2 | W      H is cut between pairs
    (N, C, H, W)  --flatten(2)------------->  N | C | H·W                joined, in this order
    (N, H, W, C)  --flatten(2)------------->  N | H | W·C                the axis W, in units of C

So the local part of a reshaped tensor is the reshaped local part. Where a cut axis is taken apart
inside a unit (a window of rows, say), the boxes first move to the nearest whole unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any

import torch
from torch import Tensor

from ..geometry import Box, Interval, Layout
from .placement import Factor, Placement, ordered
from .registry import no_intercept, refuse, spatial_op, spatial_op_named
from .tile import Tile, redistribute, wrap

Shape = tuple[int, ...]
Dimension = list[Factor]

# ── moving dimensions ────────────────────────────────────────────────────────────────────────────


def frozen(value: Any) -> Any:
    """Arguments as a key for a cache: lists as tuples, sizes given as tensors as numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(v) for v in value)
    return index(value) if isinstance(value, Tensor) else value


@lru_cache(maxsize=4096)
def _sources(func: Any, ndim: int, *args: Any, **kwargs: Any) -> Shape:
    """For each dimension of the result the dimension of the input, or −1: asked of the function."""
    probe = torch.empty(tuple(range(2, ndim + 2)), device="meta")
    return tuple(n - 2 for n in func(probe, *args, **kwargs).shape)


@spatial_op_named(
    *(
        "permute transpose transpose_ swapaxes swapaxes_ swapdims swapdims_ movedim moveaxis t t_ "
        "adjoint unsqueeze unsqueeze_"
    ).split()
)
@spatial_op(*(getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH")))
def move(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Tile:
    """Dimensions change places, and uncut ones of extent 1 are put between them."""
    ndim = input.ndim
    sources = _sources(func, ndim, *frozen(args), **{k: frozen(v) for k, v in kwargs.items()})
    where = {source - ndim: i - len(sources) for i, source in enumerate(sources) if source >= 0}
    with no_intercept():
        return wrap(func(input, *args, **kwargs), input.placement.moved(where))


@spatial_op_named("atleast_1d", "atleast_2d", "atleast_3d")
def at_least(func: Any, *tensors: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], Tile):
        return move(func, tensors[0])
    several = tensors[0] if len(tensors) == 1 else tensors
    return tuple(func(t) for t in several)


# ── joining dimensions and taking them apart ─────────────────────────────────────────────────────


@dataclass(frozen=True)
class ReshapePlan:
    """How a reshape is done, for all ranks alike."""

    source: Placement  # the boxes that the tile must have before
    placement: Placement | None  # of the result; None where every rank holds the whole
    local: Shape
    vanishing: Shape = ()  # axes of a single row that no target dimension keeps


def reshaped(func: Any, tile: Tile, target: Shape) -> Tensor:
    """The tile in another global shape of as many elements."""
    shape = tuple(tile.global_shape)
    plan = _plan(tile.placement, shape, target)
    if plan is None:
        refuse(
            func,
            f"the shape {shape} cannot become {target}: a dimension that is split over ranks "
            f"({', '.join(str(d) for d in tile.placement.cut_dims)}) would be taken apart or mixed "
            "with its neighbours",
            "Reshape the other dimensions only, or end the spatial part before with "
            "tile.full_tensor()",
        )
    if plan.vanishing:
        dissolved = _without_single_rows(tile, plan.vanishing)
        if isinstance(dissolved, Tile):
            return reshaped(func, dissolved, target)
        return dissolved.reshape(target)
    if plan.source != tile.placement:
        tile = redistribute(tile, plan.source)
    with no_intercept():
        local = tile.reshape(plan.local)
    return local if plan.placement is None else wrap(local, plan.placement)


@lru_cache(maxsize=16384)
def _plan(placement: Placement, shape: Shape, target: Shape) -> ReshapePlan | None:
    layout = placement.layout
    # One rank alone holds everything; it keeps its axes all the same, so that it gets a tile too.
    fixed = frozenset(layout.cut_axes or range(len(layout.size)))
    matched = _matched(_factors(placement, shape), target, fixed)
    if matched is None:
        return None if placement.is_cut else ReshapePlan(placement, None, target)
    taken, vanishing = matched
    if not vanishing.isdisjoint(layout.cut_axes):
        return ReshapePlan(placement, None, target, tuple(vanishing))
    units = {
        f.axis: layout.size[f.axis] // f.extent if f.extent else 1
        for dimension in taken
        for f in dimension
        if f.axis >= 0
    }
    source = placement.with_layout(_in_units(layout, units))
    result = _placed(source, [_canonical(d, fixed) for d in taken])
    return ReshapePlan(source, result, result.local_shape(target) if result else target)


def _factors(placement: Placement, shape: Shape) -> list[Factor]:
    """All dimensions from left to right as factors; an uncut extent of 1 is none."""
    dims = range(-len(shape), 0)
    factors = [f for d in dims for f in placement.factors.get(d, (Factor(-1, shape[d]),))]
    return [f for f in factors if f.axis >= 0 or f.extent != 1]


def _matched(
    factors: list[Factor], target: Shape, fixed: frozenset[int]
) -> tuple[list[Dimension], frozenset[int]] | None:
    """The factors of each target dimension, and the axes of extent 1 that none of them keeps.

    The `fixed` axes may be taken apart but not merged with what stands before them; all else is
    merged with uncut neighbours and split as the target asks. None if the target does not fit.
    """
    queue = list(factors)
    vanishing: set[int] = set()

    def front() -> Factor | None:
        while queue and queue[0].extent == 1:
            vanishing.add(queue.pop(0).axis)
        return queue[0] if queue else None

    def take(wanted: int, first: bool) -> Factor | None:
        factor = front()
        if factor is None:
            return None
        queue.pop(0)
        if factor.axis in fixed or (first and factor.extent == wanted):
            return factor
        extent = factor.extent
        while (following := front()) is not None and following.axis not in fixed:
            extent *= queue.pop(0).extent
        return Factor(-1, extent)

    taken: list[Dimension] = []
    for n in target:
        if n == 1:
            taken.append([queue.pop(0)] if queue and queue[0].extent == 1 else [])
            continue
        dimension: Dimension = []
        left = n
        while left != 1:
            factor = take(left, not dimension)
            if factor is None:
                return None
            if factor.extent != left and 0 in (factor.extent, left):
                return None
            if factor.extent == left or left % factor.extent == 0:
                dimension.append(factor)
                left = 1 if factor.extent == left else left // factor.extent
            elif factor.extent % left == 0:
                dimension.append(Factor(factor.axis, left))
                queue.insert(0, Factor(-1, factor.extent // left))
                left = 1
            else:
                return None
        taken.append(dimension)
    return None if front() is not None else (taken, frozenset(vanishing))


def _canonical(dimension: Dimension, fixed: frozenset[int]) -> Dimension:
    """One form for one meaning: an uncut extent after an axis becomes part of that axis."""
    if len(dimension) == 1:
        return dimension
    merged: Dimension = []
    for factor in dimension:
        axis = factor.axis if factor.axis in fixed else -1
        if axis < 0 and merged:
            merged[-1] = Factor(merged[-1].axis, merged[-1].extent * factor.extent)
        else:
            merged.append(Factor(axis, factor.extent))
    return merged


def _in_units(layout: Layout, units: dict[int, int]) -> Layout:
    """The layout with every cut moved to the nearest multiple of its axis' unit."""
    moved = layout
    for axis, unit in units.items():
        if unit > 1:
            moved = _scaled(moved, axis, layout.size[axis] // unit, unit // 2)
            moved = _scaled(moved, axis, layout.size[axis])
    return layout if moved == layout else moved


def _scaled(layout: Layout, axis: int, size: int, shift: int = 0) -> Layout:
    """The layout with an axis in larger or smaller units."""
    before = layout.size[axis]
    if size == before:
        return layout
    return layout.remap(axis, size, lambda c: (c + shift) * size // before)


def _placed(source: Placement, dimensions: list[Dimension]) -> Placement | None:
    """The placement of dimensions with these factors; None if no axis is left."""
    layout = source.layout
    dims: list[int] = []
    kept: list[int] = []
    joined: list[tuple[int, tuple[Factor, ...]]] = []
    for dim, factors in enumerate(dimensions, -len(dimensions)):
        axes = [f.axis for f in factors if f.axis >= 0]
        number = {axis: len(kept) + i for i, axis in enumerate(axes)}
        if len(factors) > 1:
            joined.append((dim, tuple(Factor(number.get(f.axis, -1), f.extent) for f in factors)))
        for factor in factors:
            if factor.axis >= 0:
                layout = _scaled(layout, factor.axis, factor.extent)
        kept += axes
        dims += [dim] * len(axes)
    if not kept:
        return None
    if kept != list(range(len(layout.size))):
        layout = layout.select(kept)
    return ordered(layout, tuple(dims), source.comm, tuple(joined))


def _without_single_rows(tile: Tile, axes: Shape) -> Tensor:
    """The same tensor, not cut along these axes of extent 1.

    Ranks that hold nothing say so along another axis. Where there is none there is but a single
    pixel, which every rank gets.
    """
    placement, layout = tile.placement, tile.placement.layout
    rest = [a for a in range(len(layout.size)) if a not in axes]
    if not rest:
        return tile.full_tensor()
    marked = next((a for a in rest if a in layout.cut_axes), rest[0])

    def shared(box: Box) -> Box:
        parts = [Interval(0, 1) if a in axes else part for a, part in enumerate(box)]
        if any(box[a].empty for a in axes):
            parts[marked] = Interval(parts[marked].start, parts[marked].start)
        return Box(tuple(parts))

    placement = placement.with_layout(Layout(layout.size, tuple(map(shared, layout.boxes))))
    local = placement.local_shape(tile.global_shape)
    with no_intercept():
        return wrap(tile.reshape(local), placement)


# ── the functions ────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=16384)
def _target(func: Any, shape: Shape, *args: Any, **kwargs: Any) -> Shape:
    """The global shape that `func` asks for, errors included: PyTorch itself says it."""
    return tuple(func(torch.empty(shape, device="meta"), *args, **kwargs).shape)


@spatial_op_named("reshape", "view", "flatten", "unflatten", "ravel", "squeeze")
def reshape(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Tensor:
    """Any change of shape, by the global sizes. A view where the local part can be viewed so."""
    if any(isinstance(a, torch.dtype) for a in (*args, *kwargs.values())):
        refuse(
            func,
            "a view of the bytes as another dtype has no global meaning on tiles",
            "Convert with .to(dtype), or view the .to_local() tensor",
        )
    options = {name: frozen(value) for name, value in kwargs.items()}
    target = _target(func, tuple(input.shape), *frozen(args), **options)
    result = reshaped(func, input, target)
    if func.__name__ in ("view", "unflatten") and _boxes_move(input, target):
        _sever(result, input, "its boxes had to move for this view, which made it a copy")
    return result


def _sever(copy: Tensor, original: Tensor, why: str) -> None:
    """Note that writing to the copy would not reach the original, of which it should be a view.

    The note is on the tensor that owns the memory, so that views of the copy have it too.
    """
    with no_intercept():
        memory: Any = copy if copy._base is None else copy._base
        if memory is not (original if original._base is None else original._base):
            memory.severed = why


def _boxes_move(tile: Tile, target: Shape) -> bool:
    plan = _plan(tile.placement, tuple(tile.global_shape), target)
    return plan is not None and plan.source != tile.placement


@spatial_op_named("view_as", "reshape_as")
def reshape_as(func: Any, input: Tensor, other: Tensor) -> Tensor:
    if not isinstance(input, Tile):
        return input.reshape(other.shape)
    target = _target(torch.reshape, tuple(input.shape), tuple(other.shape))
    return (input.view if func.__name__ == "view_as" else input.reshape)(target)


@spatial_op_named("squeeze_", "as_strided", "as_strided_", "resize_", "resize_as_", "set_")
def storage(func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(
        func,
        "it speaks of the memory of the whole tensor, and a tile holds only a part",
        "Use reshape, permute, unfold or squeeze, which say the same in shapes",
    )
