"""cat, stack and their kin.

The first tile decides where the result is cut; other tiles are moved there and plain tensors,
which every rank holds whole, are narrowed. Along a cut dimension the result is cut in the same
proportions as the first tile, so its pixels, and everybody's after it, move.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .assembly import Rescale, Segment, assemble, check_apart, resized, segments_of
from .placement import Placement
from .registry import refuse, spatial_op, spatial_op_named
from .slicing import inserted, negative
from .tile import Tile, alias, narrowed, redistribute, wrap


@spatial_op_named("cat", "concat", "concatenate")
def cat(
    func: Any,
    tensors: Sequence[Tensor],
    dim: int = 0,
    *,
    axis: int | None = None,
    out: Tensor | None = None,
) -> Tile:
    _refuse_out(func, out)
    # PyTorch skips tensors of shape (0,), whatever the other shapes are.
    parts = [t for t in tensors if isinstance(t, Tile) or t.ndim != 1 or t.shape[0]]
    base = _first_tile(parts)
    dim = negative(base, dim if axis is None else axis)
    dtype = _joined_dtype(
        tuple((tuple(t.shape), t.dtype) for t in parts), tuple(t.dtype for t in tensors), dim
    )
    for part in parts:
        if isinstance(part, Tile):
            check_apart(func, part, dim)
    if dim in base.placement.cut_dims:
        joined = _along_cut(parts, base, dim)
    else:
        joined = _side_by_side(parts, base.placement, dim)
    return joined if joined.dtype == dtype else joined.to(dtype)  # type: ignore[return-value]


def _refuse_out(func: Any, out: Any) -> None:
    if out is not None:
        refuse(func, "out= cannot be a tile's memory", "Use the returned tile")


def _first_tile(parts: Sequence[Tensor]) -> Tile:
    return next(part for part in parts if isinstance(part, Tile))
