"""Largest and smallest values, and vector norms, over dimensions of the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..comm.exchange import first_derivative_only, reduced
from .along import along_dimension
from .placement import Placement
from .reductions import (
    Dims,
    StaysCut,
    count_of,
    in_whole,
    is_cut,
    negative_dims,
    reduced_locally,
    safe_root,
    widened,
)
from .registry import named, no_intercept, refuse, spatial_op
from .tile import Tile, alias


class _Extreme(torch.autograd.Function):
    """The largest or smallest value; its gradient is shared equally by all cells that have it."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, placement: Placement, dims: tuple[int, ...], largest: bool
    ) -> Tensor:
        worst = _worst(local, largest)
        if all(local.shape[d] for d in dims):
            best = local.amax(dims, True) if largest else local.amin(dims, True)
        else:
            best = local.new_full([1 if d in dims else n for d, n in _sizes(local)], worst)
        whole = reduced(
            in_whole(best, placement, dims, worst), placement.comm, "max" if largest else "min"
        )
        ctx.placement, ctx.dims = placement, dims
        ctx.save_for_backward(local, whole)
        return whole

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with no_intercept():
            local, whole = (alias(t) for t in ctx.saved_tensors)
        placement, dims = ctx.placement, ctx.dims
        chosen = local == _own_part(whole, placement, dims)
        count = in_whole(chosen.sum(dims, keepdim=True).to(grad.dtype), placement, dims)
        both = reduced(torch.stack([count, grad]), placement.comm)
        share = _own_part(both[1] / both[0], placement, dims)
        return torch.where(chosen, share, torch.zeros_like(share)), None, None, None


def _sizes(x: Tensor) -> list[tuple[int, int]]:
    return list(zip(range(-x.ndim, 0), x.shape, strict=True))


def _worst(x: Tensor, largest: bool) -> float:
    if x.dtype == torch.bool:
        return not largest
    if x.is_floating_point():
        return -inf if largest else inf
    info = torch.iinfo(x.dtype)
    return info.min if largest else info.max


def _own_part(whole: Tensor, placement: Placement, dims: Sequence[int]) -> Tensor:
    for dim in placement.cut_dims:
        if dim not in dims:
            here = placement.box[placement.factors[dim][0].axis]
            whole = whole.narrow(dim, here.start, here.size)
    return whole


def _extreme(func: Any, x: Any, dims: tuple[int, ...], keep: bool, largest: bool) -> Tensor:
    if not is_cut(x, dims):
        local = alias(x).amax(dims, True) if largest else alias(x).amin(dims, True)
        return reduced_locally(local, x.placement, dims, keep)
    local = alias(x)
    numbers = local.to(torch.uint8) if local.dtype == torch.bool else local
    try:
        whole = _Extreme.apply(numbers, x.placement, dims, largest)
    except StaysCut as error:
        refuse(func, str(error), error.remedy)
    whole = whole.to(local.dtype)
    return whole if keep else whole.squeeze(dims)


@spatial_op(*named("amax", "amin"))
def amax(func: Any, input: Tile, dim: Dims = (), keepdim: bool = False) -> Tensor:
    dims = negative_dims(input, dim)
    _check_not_empty(func, input, dims)
    return _extreme(func, input, dims, keepdim, func.__name__ == "amax")


def _check_not_empty(func: Any, x: Tile, dims: tuple[int, ...]) -> None:
    if not count_of(x, dims):
        raise RuntimeError(f"{func.__name__} over no values: {dims} of {tuple(x.global_shape)}")


@spatial_op(*named("aminmax"))
def aminmax(
    func: Any, input: Tile, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = () if dim is None else (dim,)
    both = (input.amin(dims, keepdim), input.amax(dims, keepdim))
    return torch.return_types.aminmax(both)


@spatial_op(*named("max", "min"))
def max_(func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of everything; of two tensors; or along a dimension that is not cut."""
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, Tensor):
        return (torch.maximum if func.__name__ == "max" else torch.minimum)(input, other)
    if not args and not kwargs:
        dims = negative_dims(input, None)
        _check_not_empty(func, input, dims)
        return _extreme(func, input, dims, False, func.__name__ == "max")
    return along_dimension(func, input, *args, **kwargs)


@spatial_op(*named("any", "all"))
def any_(func: Any, input: Tile, dim: Dims = None, keepdim: bool = False) -> Tensor:
    dims = negative_dims(input, dim)
    true: Tensor = input != 0
    if is_cut(input, dims):
        value = _extreme(func, true, dims, keepdim, func.__name__ == "any")
    else:  # of no values too
        local = getattr(alias(true), func.__name__)(dims, keepdim=True)
        value = reduced_locally(local, input.placement, dims, keepdim)
    # PyTorch answers in bytes for bytes.
    return value.to(torch.uint8) if input.dtype == torch.uint8 else value


@spatial_op(torch.linalg.vector_norm, torch.linalg.norm, *named("norm", "vector_norm"))
def norm(
    func: Any,
    input: Tile,
    p: float | str | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    out: None = None,
    dtype: torch.dtype | None = None,
    ord: float | None = None,
) -> Tensor:
    """The vector norm over `dim`."""
    order = ord if ord is not None else p
    dims = negative_dims(input, dim)
    if order is None or order == "fro":
        order = 2
    elif isinstance(order, str) or (
        func is torch.linalg.norm and (len(dims) == 2 or (dim is None and input.ndim > 1))
    ):
        refuse(func, f"matrix norms ({order!r}) have no rule on tiles", "Use a vector norm")
    x: Any = input if dtype is None else input.to(dtype)
    if not is_cut(input, dims):
        local = torch.linalg.vector_norm(alias(x), order, dims, keepdim=True)
        return reduced_locally(local, input.placement, dims, keepdim)
    if not (x.is_floating_point() or x.is_complex()):
        raise RuntimeError(f"norms are of floating point or complex numbers, and not {x.dtype}")
    wide = x.abs() if x.is_complex() else widened(x)
    value = _vector_norm(func, wide, order, dims, keepdim)
    return value if x.is_complex() else value.to(x.dtype)


def _vector_norm(func: Any, x: Tile, order: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if order == 2:
        return safe_root(x.square().sum(dims, keepdim=keepdim))
    if order == 1:
        return x.abs().sum(dims, keepdim=keepdim)
    if order in (inf, -inf):
        return _extreme(func, x.abs(), dims, keepdim, order > 0)
    if order == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim=keepdim)
    sums: Tensor = x.abs().pow(order).sum(dims, keepdim=keepdim)
    zero = sums == 0
    root = torch.where(zero, torch.ones_like(sums), sums).pow(1.0 / order)
    return torch.where(zero, sums, root)


@spatial_op(F.normalize)
def normalize(
    func: Any, input: Tile, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(input, p, dim, keepdim=True)
    return input / length.clamp_min(eps)
