"""Operators that move pixels between the channels and the image, or channels among themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..geometry import SlidingWindow
from .placement import Placement
from .regions import WindowPlan, check_ordinary, refuse_split_channels, windowed, windows_for
from .registry import named, no_intercept, spatial_op
from .tile import Tile, alias, wrap

_IMAGE = (-2, -1)


@lru_cache(maxsize=4096)
def _check_sizes(func: Any, shape: tuple[int, ...], factor: int, other: int) -> None:
    """PyTorch's own errors about the global shape, of which dimension `other` is no matter."""
    func(torch.empty([0 if d == other else n for d, n in enumerate(shape, -len(shape))]), factor)


def _regrouped(func: Any, x: Tensor, factor: int, shape: tuple[int, ...]) -> Tensor:
    """`func(x, factor)`, whose last dimensions become `shape`."""
    # PyTorch gets the shapes of empty tensors wrong here, some forward and some backward.
    return func(x, factor) if x.numel() else x.reshape(*x.shape[:-3], *shape)


@lru_cache(maxsize=4096)
def _magnified(placement: Placement, factor: int) -> Placement:
    """Every pixel becomes a block of factor × factor pixels."""
    layout = placement.layout
    for axis, dim in enumerate(placement.dims):
        if dim in _IMAGE:
            layout = layout.remap(axis, layout.size[axis] * factor, lambda c: c * factor)
    return placement.with_layout(layout)


@spatial_op(*named("pixel_shuffle"))
def pixel_shuffle(func: Any, input: Tile, upscale_factor: int) -> Tile:
    r = upscale_factor
    _check_sizes(func, tuple(input.shape), r, other=-1)
    check_ordinary(func, input.placement, _IMAGE)
    local = alias(input)
    channels, height, width = local.shape[-3:]
    out = _regrouped(func, local, r, (channels // r**2, height * r, width * r))
    return wrap(alias(out), _magnified(input.placement, r))


@spatial_op(*named("pixel_unshuffle"))
def pixel_unshuffle(func: Any, input: Tile, downscale_factor: int) -> Tile:
    r = downscale_factor
    shape = tuple(input.shape)
    _check_sizes(func, shape, r, other=-3)
    check_ordinary(func, input.placement, _IMAGE)
    windows = windows_for(
        input.placement,
        shape[-2:],
        [n // r for n in shape[-2:]],
        lambda dim, n, m: SlidingWindow(n, m, kernel=r, stride=r),
    )

    def kernel(region: Tensor, plan: WindowPlan) -> Tensor:
        channels, height, width = region.shape[-3:]
        return _regrouped(func, region, r, (channels * r**2, height // r, width // r))

    return windowed(input, windows, kernel)


@spatial_op(*named("channel_shuffle", "native_channel_shuffle"))
def channel_shuffle(func: Any, input: Tile, groups: int) -> Tile:
    _check_sizes(func, tuple(input.shape), groups, other=-1)
    if 1 - input.ndim in input.placement.cut_dims:
        refuse_split_channels(func)
    with no_intercept():
        return wrap(alias(func(alias(input), groups)), input.placement)
