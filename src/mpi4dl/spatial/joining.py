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
from .registry import refuse, spatial_op_named
from .slicing import negative
from .tile import Tile, alias, narrowed, redistribute, wrap

Kinds = tuple[tuple[tuple[int, ...], torch.dtype], ...]


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
    base = _base(parts)
    dim = negative(base, dim if axis is None else axis)
    dtype = _checked(torch.cat, _kinds(tensors), dim)
    for part in parts:
        if isinstance(part, Tile):
            check_apart(func, part, dim)
    if dim in base.placement.cut_dims:
        joined = _along_cut(func, parts, base, dim)
    else:
        joined = _side_by_side(parts, base.placement, dim)
    return joined if len(parts) == len(tensors) else joined.to(dtype)  # type: ignore[return-value]


@spatial_op_named("stack")
def stack(func: Any, tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tile:
    _refuse_out(func, out)
    _checked(torch.stack, _kinds(tensors), dim)
    return torch.cat([t.unsqueeze(dim) for t in tensors], dim)  # type: ignore[return-value]


@spatial_op_named("hstack", "vstack", "dstack", "row_stack", "column_stack")
def stack_by_name(func: Any, tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tile:
    """For tensors that have the dimension already, these are cat."""
    _refuse_out(func, out)
    dim = {"vstack": 0, "row_stack": 0, "hstack": 1, "column_stack": 1, "dstack": 2}[func.__name__]
    if any(t.ndim <= max(dim, 1) for t in tensors):
        refuse(func, "this would add dimensions to the tensors first", "Use stack or cat")
    return torch.cat(tuple(tensors), dim)  # type: ignore[return-value]


def _refuse_out(func: Any, out: Any) -> None:
    if out is not None:
        refuse(func, "out= cannot be a tile's memory", "Use the returned tile")


def _base(parts: Sequence[Tensor]) -> Tile:
    """The tile that decides where the result is cut: the first one that has pixels at all."""
    tiles = [part for part in parts if isinstance(part, Tile)]
    return next((tile for tile in tiles if tile.placement.total), tiles[0])


def _kinds(tensors: Sequence[Tensor]) -> Kinds:
    return tuple(map(_kind, tensors))


def _kind(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    """The global shape and the dtype."""
    if isinstance(tensor, Tile):
        local = alias(tensor)
        return tensor.placement.global_shape(local.shape), local.dtype
    return tuple(tensor.shape), tensor.dtype


@lru_cache(maxsize=4096)
def _checked(func: Any, kinds: Kinds, dim: int) -> torch.dtype:
    """The dtype of the result. PyTorch's own errors, about the global shapes, on every rank."""
    whole = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in kinds]
    return func(whole, dim).dtype


def _placed(part: Tensor, placement: Placement) -> Tensor:
    """This rank's part of a tensor of the same global shape, as a plain tensor."""
    if isinstance(part, Tile):
        return alias(redistribute(part, placement))
    return narrowed(part, placement)


def _side_by_side(parts: Sequence[Tensor], base: Placement, dim: int) -> Tile:
    sizes = [_kind(part)[0][dim] for part in parts]
    here = [_placed(part, resized(base, dim, n)) for part, n in zip(parts, sizes, strict=True)]
    return wrap(torch.cat(here, dim), resized(base, dim, sum(sizes)))


def _along_cut(func: Any, parts: Sequence[Tensor], base: Tile, dim: int) -> Tile:
    if any(part.placement.joined for part in parts if isinstance(part, Tile)):
        refuse(
            func,
            f"dimension {dim} is split over ranks and others were flattened into one",
            "Join the tensors before flattening",
        )
    segments = segments_of(*(Segment(p.shape[dim], 0, 1, i) for i, p in enumerate(parts)))
    total = sum(segment.length for segment in segments)
    proportional = Rescale(up=total, down=base.shape[dim])
    return assemble(parts, dim, segments, resized(base.placement, dim, total, proportional))
