"""Sums, means and variances over dimensions of the whole image.

A reduction over all cut dimensions ends in an all-reduce, and its result is an ordinary tensor
that every rank holds. A reduction over dimensions that are not cut stays local, and its result
is a tile. Over some of the cut dimensions: the result, one image dimension smaller, is put
together on every rank by the same all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from operator import index
from typing import Any

import torch
from torch import Tensor

from ..comm.exchange import all_reduce_sum
from .placement import Placement
from .registry import named, refuse, spatial_op
from .tile import Tile, alias, wrap

Dims = int | Sequence[int] | None


def negative_dims(tile: Tile, dim: Dims) -> tuple[int, ...]:
    """The dimensions of a reduction as negative numbers; None or () means all."""
    n = tile.ndim
    if dim is None or (isinstance(dim, Sequence) and len(dim) == 0):
        return tuple(range(-n, 0))
    dims = tuple(dim) if isinstance(dim, Sequence) else (index(dim),)
    if any(not -n <= d < n for d in dims):
        raise IndexError(f"dimensions {dims} of a tensor with {n} dimensions")
    negative = sorted({d - n if d >= 0 else d for d in dims})
    if len(negative) != len(dims):
        raise RuntimeError(f"a dimension appears more than once in {dims}")
    return tuple(negative)


def is_cut(tile: Tile, dims: Sequence[int]) -> bool:
    return any(d in tile.placement.cut_dims for d in dims)


def reduced_locally(local: Tensor, placement: Placement, dims: Sequence[int], keep: bool) -> Tensor:
    """The result of a reduction over uncut dimensions, given with those dimensions kept."""
    if not keep:
        local = local.squeeze(tuple(dims))
    rest = placement.without(dims, keep)
    return local if rest is None else wrap(alias(local), rest)


class StaysCut(ValueError):
    """A result would be cut in pixels that are no interval of it; the same on every rank."""

    remedy = "Reduce before flattening, over the image dimensions"


def in_whole(local: Tensor, placement: Placement, dims: Sequence[int], fill: float = 0.0) -> Tensor:
    """`local`, of size 1 in `dims`, set into a tensor that spans the remaining cut dimensions.

    Afterwards an all-reduce puts the ranks' parts together.
    """
    sides = [0] * (2 * local.ndim)
    for dim in placement.cut_dims:
        if dim in dims:
            continue
        (factor,) = placement.factors[dim] if len(placement.factors[dim]) == 1 else (None,)
        if factor is None:
            raise StaysCut("a flattened dimension stays cut")
        here = placement.box[factor.axis]
        sides[-2 * dim - 2] = here.start
        sides[-2 * dim - 1] = factor.extent - here.stop
    # F.pad would make a float of the fill, which cannot hold the largest integers.
    return torch.constant_pad_nd(local, sides, fill) if any(sides) else local


def _spread(func: Any, local: Tensor, tile: Tile, dims: Sequence[int], fill: float) -> Tensor:
    try:
        return in_whole(local, tile.placement, dims, fill)
    except StaysCut as error:
        refuse(func, str(error), error.remedy)


def finish_sum(func: Any, partial: Tensor, tile: Tile, dims: Sequence[int], keep: bool) -> Tensor:
    """From each rank's sum over `dims` (kept with size 1) to the sum of the whole image."""
    if not is_cut(tile, dims):
        return reduced_locally(partial, tile.placement, dims, keep)
    total = all_reduce_sum(_spread(func, partial, tile, dims, 0.0), tile.placement.comm)
    return total if keep else total.squeeze(tuple(dims))


def count_of(tile: Tile, dims: Sequence[int]) -> int:
    shape = tile.global_shape
    return prod(shape[d] for d in dims)


# ── sums ─────────────────────────────────────────────────────────────────────────────────────────


@spatial_op(*named("sum"))
def sum_(
    func: Any,
    input: Tile,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    dims = negative_dims(input, dim)
    local = alias(input)
    if is_cut(input, dims) and dtype is None and local.dtype in (torch.bfloat16, torch.float16):
        # One rounding at the end, as in one process, and not one on every rank.
        partial = local.sum(dims, keepdim=True, dtype=torch.float32)
        return finish_sum(func, partial, input, dims, keepdim).to(local.dtype)
    return finish_sum(func, local.sum(dims, keepdim=True, dtype=dtype), input, dims, keepdim)


@spatial_op(*named("mean"))
def mean(
    func: Any,
    input: Tile,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    dims = negative_dims(input, dim)
    if not is_cut(input, dims):
        local = alias(input).mean(dims, keepdim=True, dtype=dtype)
        return reduced_locally(local, input.placement, dims, keepdim)
    kind = dtype or input.dtype
    wide = torch.float32 if kind in (torch.bfloat16, torch.float16) else kind
    if not kind.is_floating_point and not kind.is_complex:
        raise RuntimeError(f"the mean of {kind} values is not defined; choose a floating dtype")
    total: Tensor = sum_(func, input, dims, keepdim, dtype=wide)
    return (total / count_of(input, dims)).to(kind)


@spatial_op(*named("count_nonzero"))
def count_nonzero(func: Any, input: Tile, *dims: Any, dim: Dims = None) -> Tensor:
    """Dimensions may be given one by one."""
    given = dim if not dims else dims[0] if len(dims) == 1 else dims
    return (input != 0).sum(negative_dims(input, given))


@spatial_op(*named("var", "std"))
def var(func: Any, input: Tile, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    return _variance(func, input, dim, *args, **kwargs)[0]


@spatial_op(*named("var_mean", "std_mean"))
def var_mean(
    func: Any, input: Tile, dim: Any = None, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    return _variance(func, input, dim, *args, **kwargs)


def _variance(
    func: Any,
    x: Tile,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """In two passes, so that a large mean costs no digits."""
    if isinstance(dim, bool):  # the old form: var(x, unbiased)
        dim, unbiased = None, dim
    dims = negative_dims(x, dim)
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    wide = widened(x)
    centre: Tensor = wide.mean(dims, keepdim=True)
    degrees = max(count_of(x, dims) - correction, 0)
    deviation: Tensor = wide - centre
    if x.is_complex():
        deviation = deviation.abs()
    squares: Tensor = deviation.square().sum(dims, keepdim=keepdim)
    value = squares / degrees if degrees else squares * inf
    if "std" in func.__name__:
        value = safe_root(value)
    centre = centre if keepdim else centre.squeeze(dims)
    return (value, centre) if wide is x else (value.to(x.dtype), centre.to(x.dtype))


def widened(x: Tile) -> Tile:
    """Half precision as float32: squares and sums of it overflow and round too early."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x  # type: ignore[return-value]


def safe_root(x: Tensor) -> Tensor:
    """√x, with gradient 0 and not infinity where x is 0."""
    zero = x == 0
    return torch.where(zero, x, torch.where(zero, torch.ones_like(x), x).sqrt())
