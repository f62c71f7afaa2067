"""Adaptive pooling: output o of m covers the cells ⌊o·n/m⌋ … ⌈(o+1)·n/m⌉ − 1 of n.

Two ways, chosen from the global sizes alone:

* few outputs, each over many cells: every rank pools what it owns of each, and a small
  all-reduce puts the parts together (an output size of 1 is a plain mean);
* many outputs: each rank fetches what its own outputs cover, as for any other window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from ..comm.exchange import all_reduce_sum
from ..errors import GeometryError
from ..geometry import Interval, TableWindow, check_output
from ..geometry.window import ceil_div
from .placement import Placement
from .reductions import is_cut
from .regions import WindowPlan, check_ordinary, plan, windowed, windows_for
from .registry import named, refuse, spatial_op
from .tile import Tile, alias, narrowed, wrap

OutputSize = int | None | Sequence[int | None]


@lru_cache(maxsize=1024)
def covering(n: int, m: int) -> TableWindow:
    """The window of adaptive pooling from n cells to m outputs."""
    first = tuple(o * n // m for o in range(m))
    last = tuple(ceil_div((o + 1) * n, m) - 1 for o in range(m))
    return TableWindow(n, m, first, last)


def _sizes(func: Any, x: Tile, output_size: OutputSize) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes before and after, over the pooled dimensions."""
    if not x.is_floating_point():
        raise NotImplementedError(f"{func.__name__} is not implemented for {x.dtype}")
    count = int(func.__name__.split("pool")[1][0])
    check_ordinary(func, x.placement, tuple(range(-count, 0)), channels=False)
    before = tuple(x.global_shape[-count:])
    asked = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * count
    if len(asked) != count or x.ndim not in (count + 1, count + 2):
        raise GeometryError(
            f"{func.__name__} to the size {asked} of a tensor of {tuple(x.global_shape)}: it is "
            f"for {count} dimensions, with or without a batch"
        )
    if not all(before):
        raise GeometryError(f"{func.__name__} of an image without pixels: {tuple(x.global_shape)}")
    after = tuple(n if m is None else int(m) for n, m in zip(before, asked, strict=True))
    check_output(func.__name__, before, after)
    return before, after


def _few_outputs(x: Tile, before: Sequence[int], after: Sequence[int]) -> bool:
    """The parts of all outputs together are no larger than a tile."""
    return prod(after) * x.placement.layout.ranks <= prod(before)


def _outputs_placement(x: Tile, before: Sequence[int], after: Sequence[int]) -> Placement:
    return plan(
        x.placement, windows_for(x.placement, before, after, lambda d, n, m: covering(n, m))
    ).placement


@spatial_op(*named("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"))
def adaptive_average(func: Any, input: Tile, output_size: OutputSize) -> Tensor:
    before, after = _sizes(func, input, output_size)
    changed = [d for d in range(-len(before), 0) if after[d] != before[d]]
    if all(after[d] == 1 for d in changed):
        return input.mean(changed, keepdim=True) if changed else input
    windows = windows_for(input.placement, before, after, lambda d, n, m: covering(n, m))
    if is_cut(input, changed) and not _few_outputs(input, before, after):

        def kernel(region: Tensor, p: WindowPlan) -> Tensor:
            reads, outs = dict(p.reads), dict(p.out)
            for dim in changed:
                here = reads.get(dim, Interval(0, before[dim]))
                mine = outs.get(dim, Interval(0, after[dim]))
                region = _averaged(region, dim, before[dim], after[dim], here, mine)
            return region

        return windowed(input, windows, kernel)
    local, placement = alias(input), input.placement
    for dim in changed:
        axis = placement.axis_of(dim)
        here = Interval(0, before[dim]) if axis is None else placement.box[axis]
        local = _averaged(local, dim, before[dim], after[dim], here, Interval(0, after[dim]))
    return _from_parts(func, local, input, changed, _outputs_placement(input, before, after))


def _averaged(x: Tensor, dim: int, n: int, m: int, here: Interval, outputs: Interval) -> Tensor:
    """Averages of `outputs` along `dim`, as far as the cells `here`, which x holds, contribute."""
    weights = x.new_zeros(max(outputs.size, 1), here.size)
    window = covering(n, m)
    for row, o in enumerate(range(outputs.start, outputs.stop)):
        cells = Interval(window.first[o], window.last[o] + 1)
        weights[row, cells.intersect(here).slice_in(here)] = 1.0 / cells.size
    # Pooling keeps its dtype under autocast, which would round a product of matrices.
    with torch.autocast(x.device.type, enabled=False):
        return (x.movedim(dim, -1) @ weights.t()).movedim(-1, dim)


def _from_parts(
    func: Any, parts: Tensor, x: Tile, changed: Sequence[int], out: Placement
) -> Tensor:
    """Sum every rank's part of all outputs, and keep this rank's outputs."""
    if not is_cut(x, changed):
        return wrap(alias(parts), out)
    if any(d not in changed for d in x.placement.cut_dims):
        refuse(
            func,
            "it changes some of the split dimensions and leaves others",
            "Split image dimensions only, and pool all of them",
        )
    whole = all_reduce_sum(parts, x.placement.comm)
    return wrap(alias(narrowed(whole, out)), out)


@spatial_op(*named("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"))
def adaptive_max(
    func: Any, input: Tile, output_size: OutputSize, return_indices: bool = False
) -> Tensor:
    if return_indices or func is torch.adaptive_max_pool1d:  # which has no other form
        adaptive_max_with_indices(func)
    before, after = _sizes(func, input, output_size)
    dims = tuple(range(-len(before), 0))
    changed = [d for d in dims if after[d] != before[d]]
    if not changed:
        return input
    apart = set(input.placement.cut_dims) <= set(dims)  # all ranks have parts of every image
    if apart and is_cut(input, changed) and _few_outputs(input, before, after):
        parts = _first_of_the_largest(input, before, after)
        if prod(after) == 1:
            return all_reduce_sum(parts, input.placement.comm)
        return _from_parts(func, parts, input, dims, _outputs_placement(input, before, after))

    def kernel(region: Tensor, p: WindowPlan) -> Tensor:
        reads, outs = dict(p.reads), dict(p.out)
        # One dimension after the other, the last first: ties go to the first in memory order.
        for dim in sorted(changed, reverse=True):
            here = reads.get(dim, Interval(0, before[dim]))
            mine = outs.get(dim, Interval(0, after[dim]))
            region = _largest(region, dim, covering(before[dim], after[dim]), here, mine)
        return region

    windows = windows_for(input.placement, before, after, lambda d, n, m: covering(n, m))
    return windowed(input, windows, kernel)


def _largest(x: Tensor, dim: int, window: TableWindow, here: Interval, outputs: Interval) -> Tensor:
    if outputs.empty:
        return x.narrow(dim, 0, 1)
    columns = [
        x.narrow(dim, window.first[o] - here.start, window.last[o] + 1 - window.first[o])
        for o in range(outputs.start, outputs.stop)
    ]
    return torch.cat([c.max(dim, keepdim=True)[0] for c in columns], dim)


def _first_of_the_largest(x: Tile, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """This rank's part of every output: its own value where it has the first largest, else 0.

    PyTorch gives the whole gradient to the first of equal values (ReLU makes many), so the ranks
    have to find out who holds that one: the largest value, and among equals the smallest
    position in the whole image.
    """
    placement, count = x.placement, len(before)
    local = alias(x)
    whole = [Interval(0, n) for n in before]
    for axis, dim in enumerate(placement.dims):
        if dim >= -count:
            whole[dim] = placement.box[axis]
    values, positions = [], []
    for cell in product(*(range(m) for m in after)):
        windows = [covering(n, m) for n, m in zip(before, after, strict=True)]
        cells = [Interval(w.first[o], w.last[o] + 1) for w, o in zip(windows, cell, strict=True)]
        mine = [c.intersect(h) for c, h in zip(cells, whole, strict=True)]
        value, position = _best_in(local, mine, whole, before)
        values.append(value)
        positions.append(position)
    shape = (*local.shape[:-count], *after)
    value = torch.stack(values, -1).view(shape)
    position = torch.stack(positions, -1).view(shape)
    everyone = placement.comm.all_gather(value.detach())
    places = placement.comm.all_gather(position)
    top = everyone.amax(0)
    first = torch.where(everyone == top, places, torch.iinfo(torch.int64).max).amin(0)
    return torch.where((value == top) & (position == first), value, torch.zeros_like(value))


def _best_in(
    local: Tensor, cells: list[Interval], here: list[Interval], sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The largest value in `cells` and its position in the whole image, for every channel."""
    count = len(cells)
    shape = local.shape[:-count]
    if any(c.empty for c in cells):
        # Nothing here, but in the graph all the same.
        nothing = local.flatten(-count).sum(-1).to(local.dtype) * 0  # whatever autocast does
        lowest = -inf if local.is_floating_point() else torch.iinfo(local.dtype).min
        return nothing.masked_fill(torch.ones_like(nothing, dtype=torch.bool), lowest), (
            torch.full(shape, torch.iinfo(torch.int64).max, device=local.device)
        )
    part = local
    for dim, (cell, h) in zip(range(-count, 0), zip(cells, here, strict=True), strict=True):
        part = part.narrow(dim, cell.start - h.start, cell.size)
    value, place = part.flatten(-count).max(-1)
    position = torch.zeros_like(place)
    stride = prod(sizes)
    inner = prod(c.size for c in cells)
    for cell, n in zip(cells, sizes, strict=True):
        stride //= n
        inner //= cell.size
        position += (place // inner % cell.size + cell.start) * stride
    return value, position


@spatial_op(
    *named(
        "adaptive_max_pool1d_with_indices",
        "adaptive_max_pool2d_with_indices",
        "adaptive_max_pool3d_with_indices",
    ),
)
def adaptive_max_with_indices(func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(func, "indices into the whole image are not kept on tiles", "Use return_indices=False")
