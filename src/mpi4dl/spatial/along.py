"""Softmax, and operators that look along one dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .placement import Placement
from .reductions import Dims, is_cut, negative_dims
from .registry import named, no_intercept, refuse, spatial_op
from .tile import Tile, alias, wrap


@spatial_op(*named("logsumexp"))
def logsumexp(func: Any, input: Tile, dim: Dims, keepdim: bool = False) -> Tensor:
    dims = negative_dims(input, dim)
    top = input.detach().amax(dims, keepdim=True)
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    value: Tensor = (input - top).exp().sum(dims, keepdim=True).log() + top
    return value if keepdim else value.squeeze(dims)


@spatial_op(*named("softmax", "log_softmax", "softmin"))
def softmax(
    func: Any,
    input: Tile,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if dim is None:
        raise ValueError("softmax on tiles needs its dimension named: dim=1 for the channels")
    dims = negative_dims(input, dim)
    name = func.__name__.removeprefix("special_")
    if not is_cut(input, dims):
        with no_intercept():
            keywords = {} if dtype is None else {"dtype": dtype}
            return wrap(func(alias(input), dims[0], **keywords), input.placement)
    x: Tensor = input if dtype is None else input.to(dtype)
    x = -x if name == "softmin" else x
    shifted: Tensor = x - x.detach().amax(dims, keepdim=True)
    if name == "log_softmax":
        return shifted - shifted.exp().sum(dims, keepdim=True).log()
    powers = shifted.exp()
    return powers / powers.sum(dims, keepdim=True)


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
    "cosine_similarity": (1, 1),
    "gather": (0, None),
}


@spatial_op(*named(*(n for n in _ALONG if n not in ("max", "min"))))
def along_dimension(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Any:
    """Operators that look along one dimension: answered where that dimension is not cut."""
    position, default = _ALONG[func.__name__]
    dim = kwargs.get("dim", args[position] if len(args) > position else default)
    if not isinstance(dim, int) or is_cut(input, negative_dims(input, dim)):
        where = f"dimension {dim}" if isinstance(dim, int) else "several dimensions at once"
        refuse(
            func,
            f"it looks along {where}, which is split over ranks",
            "Use a dimension that is not split, or gather with .full_tensor() first",
        )
    (negative,) = negative_dims(input, dim)
    placement = input.placement
    tiles = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if any(
        not isinstance(t, Tile) or t.placement != placement or t.ndim != input.ndim for t in tiles
    ):
        refuse(func, "its operands lie differently", "Use tiles of the same layout")
    with no_intercept():
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
