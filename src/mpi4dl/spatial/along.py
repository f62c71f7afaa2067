"""Softmax, and operators that look along one dimension."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from .agree import raised_together
from .elementwise import placed_together
from .placement import Placement
from .reductions import Dims, count_of, is_cut, negative_dims, widened
from .registry import named, no_intercept, refuse, spatial_op
from .tile import Tile, alias, wrap


@spatial_op(*named("logsumexp"))
def logsumexp(func: Any, input: Tile, dim: Dims, keepdim: bool = False) -> Tensor:
    dims = negative_dims(input, dim)
    floating = input.is_floating_point()
    x: Any = widened(input) if floating else input.to(torch.get_default_dtype())
    top: Any = 0
    if count_of(x, dims):
        top = x.detach().amax(dims, keepdim=True)
        top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    value: Tensor = (x - top).exp().sum(dims, keepdim=True).log() + top
    value = value.to(input.dtype) if floating else value
    return value if keepdim else value.squeeze(dims)


@spatial_op(*named("softmax", "log_softmax", "softmin"))
def softmax(
    func: Any,
    input: Tile,
    dim: int | None = None,
    _stacklevel: int | torch.dtype | None = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if isinstance(_stacklevel, torch.dtype):  # where torch.softmax has it
        dtype = _stacklevel
    if dim is None:  # what PyTorch still guesses, with a warning
        dim = 0 if input.ndim in (0, 1, 3) else 1
    dims = negative_dims(input, dim)
    name = func.__name__.removeprefix("special_")
    if not (input.is_floating_point() if dtype is None else dtype.is_floating_point):
        # A rank without pixels would not notice, and one that exponentiates by itself neither.
        raise NotImplementedError(f"{name} is not implemented for {dtype or input.dtype}")
    if not is_cut(input, dims):
        with no_intercept():
            keywords = {} if dtype is None else {"dtype": dtype}
            return wrap(func(alias(input), dims[0], **keywords), input.placement)
    given: Any = input if dtype is None else input.to(dtype)
    x: Tensor = widened(given)
    x = -x if name == "softmin" else x
    shifted: Tensor = x - x.detach().amax(dims, keepdim=True)
    powers = shifted.exp()
    total = powers.sum(dims, keepdim=True)
    return (shifted - total.log() if name == "log_softmax" else powers / total).to(given.dtype)


_ALONG: dict[str, tuple[int, int | None]] = {
    # name: (position of `dim` after the input, its default)
    "argmax": (0, None),
    "argmin": (0, None),
    "max": (0, None),
    "min": (0, None),
    "cumsum": (0, None),
    "cumprod": (0, None),
    "cummax": (0, None),
    "cummin": (0, None),
    "logcumsumexp": (0, None),
    "diff": (1, -1),
    "sort": (0, -1),
    "argsort": (0, -1),
    "msort": (9, 0),
    "topk": (1, -1),
    "kthvalue": (1, -1),
    "median": (0, None),
    "nanmedian": (0, None),
    "mode": (0, -1),
    "quantile": (1, None),
    "prod": (0, None),
    "nansum": (0, None),
    "nanmean": (0, None),
    "gather": (0, None),
}


def _refuse_cut(func: Any, where: str) -> NoReturn:
    refuse(
        func,
        f"it looks along {where}, which is split over ranks",
        "Use a dimension that is not split, or gather with .full_tensor() first",
    )


@spatial_op(*named(*(n for n in _ALONG if n not in ("max", "min"))))
def along_dimension(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Any:
    """Operators that look along one dimension: answered where that dimension is not cut."""
    position, default = _ALONG[func.__name__]
    dim = kwargs.get("dim", args[position] if len(args) > position else default)
    if not isinstance(dim, int) or is_cut(input, negative_dims(input, dim)):
        where = f"dimension {dim}" if isinstance(dim, int) else "several dimensions at once"
        _refuse_cut(func, where)
    (negative,) = negative_dims(input, dim)
    placement = input.placement
    tiles = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if any(
        not isinstance(t, Tile) or t.placement != placement or t.ndim != input.ndim for t in tiles
    ):
        refuse(func, "its operands lie differently", "Use tiles of the same layout")
    with no_intercept():
        if func.__name__ == "quantile" and not input.numel():
            result = _quantile_of_nothing(func, alias(input), negative, *args, **kwargs)
        elif func.__name__ == "gather":  # an index that is out of bounds lies on some rank
            result = raised_together(
                lambda: func(input, *args, **kwargs), input.device, placement.comm
            )
        else:
            result = func(input, *args, **kwargs)
        first = result if isinstance(result, Tensor) else result[0]
        rest: Placement | None = placement
        gone = first.ndim < input.dim()
        if gone or first.shape[negative] != input.shape[negative]:
            rest = placement.without((negative,), keep=not gone)

    def tiled(value: Any) -> Any:
        return value if rest is None else wrap(alias(value), rest)

    if isinstance(result, Tensor):
        return tiled(result)
    return type(result)([tiled(value) for value in result])


def _quantile_of_nothing(func: Any, local: Tensor, dim: int, *args: Any, **kwargs: Any) -> Tensor:
    """PyTorch refuses tensors without values, which only some of the ranks may have."""
    empty = [d for d in range(-local.ndim, 0) if not local.shape[d]]
    for d in empty:
        local = F.pad(local, [0, 0] * (-d - 1) + [0, 1])
    result: Tensor = func(local, *args, **kwargs)
    for d in empty:
        gone = d < dim and result.ndim < local.ndim
        result = result.narrow(d + gone, 0, 0)
    return result


@spatial_op(*named("cosine_similarity"))
def cosine_similarity(func: Any, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Of the pixels of one image with those of another, or with a vector for all of them."""
    n = max(x1.ndim, x2.ndim)
    if not -n <= dim < n:
        raise IndexError(f"dimension {dim} of tensors with {n} dimensions")
    negative = dim - n if dim >= 0 else dim
    placement, parts = placed_together(func, (x1, x2))
    if negative in placement.cut_dims:
        _refuse_cut(func, f"dimension {dim}")
    with no_intercept():
        out = func(*parts, dim=negative, eps=eps)
    rest = placement.without((negative,), keep=False)
    return out if rest is None else wrap(alias(out), rest)
