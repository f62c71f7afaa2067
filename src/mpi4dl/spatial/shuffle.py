"""Operators that move pixels between the channels and the image, or channels among themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..geometry import SlidingWindow
from .placement import Placement
from .registry import named, no_intercept, refuse, spatial_op
from .regions import check_ordinary, refuse_split_channels, windowed, windows_for
from .tile import Tile, alias, wrap

_IMAGE = (-2, -1)


@lru_cache(maxsize=4096)
def _output_shape(func: Any, shape: tuple[int, ...], factor: int) -> tuple[int, ...]:
    """The global shape of the result; or PyTorch's own error, the same on every rank."""
    return tuple(func(torch.empty(shape, device="meta"), factor).shape)


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
    _output_shape(func, tuple(input.shape), upscale_factor)
    check_ordinary(func, input, _IMAGE)
    with no_intercept():
        out = func(alias(input), upscale_factor)
    return wrap(alias(out), _magnified(input.placement, upscale_factor))


@spatial_op(*named("pixel_unshuffle"))
def pixel_unshuffle(func: Any, input: Tile, downscale_factor: int) -> Tile:
    r = downscale_factor
    shape = tuple(input.shape)
    out = _output_shape(func, shape, r)
    check_ordinary(func, input, _IMAGE)
    windows = windows_for(
        input, shape[-2:], out[-2:], lambda dim, n, m: SlidingWindow(n, m, kernel=r, stride=r)
    )
    return windowed(input, windows, lambda region, plan: func(region, r))


@spatial_op(*named("channel_shuffle", "native_channel_shuffle"))
def channel_shuffle(func: Any, input: Tile, groups: int) -> Tile:
    _output_shape(func, tuple(input.shape), groups)
    channel = 1 - input.ndim
    if any(channel == d for d, _ in input.placement.joined):
        refuse(func, "the channels were flattened with the image", "Reshape to (N, C, H, W) first")
    if channel in input.placement.cut_dims:
        refuse_split_channels(func)
    with no_intercept():
        local: Tensor = func(alias(input), groups)
    return wrap(alias(local), input.placement)
