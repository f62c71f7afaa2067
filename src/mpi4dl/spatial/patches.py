"""Unfolding images into patches, and folding patches into images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..geometry import SlidingWindow, TransposedWindow, WholeWindow, check_output, conv_size
from .convolution import Sizes, per_dimension
from .regions import WindowPlan, check_ordinary, refuse_split_channels, windowed, windows_for
from .registry import refuse, spatial_op
from .tile import Tile

_DIMS = (-2, -1)


@spatial_op(F.unfold)
def unfold(
    func: Any,
    input: Tile,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """(N, C, H, W) → (N, C·kh·kw, L), where L joins the rows and columns of the patches."""
    check_ordinary(func, input.placement, _DIMS)
    kernel, sizes = per_dimension(kernel_size, 2), tuple(input.shape[-2:])
    strides, dilations = per_dimension(stride, 2), per_dimension(dilation, 2)
    pads = per_dimension(padding, 2)
    outs = [conv_size(sizes[d], kernel[d], strides[d], pads[d], dilations[d]) for d in _DIMS]
    check_output("unfold", sizes, outs)
    windows = windows_for(
        input.placement,
        sizes,
        outs,
        lambda d, n, out: SlidingWindow(n, out, kernel[d], strides[d], pads[d], dilations[d]),
    )
    cut = input.placement.cut_dims
    native = tuple(0 if d in cut else pads[d] for d in _DIMS)

    def kernel_call(region: Tensor, plan: WindowPlan) -> Tensor:
        rows, columns = (
            conv_size(region.shape[d], kernel[d], strides[d], native[d], dilations[d])
            for d in _DIMS
        )
        return func(region, kernel, dilations, native, strides).unflatten(-1, (rows, columns))

    return windowed(input, windows, kernel_call).flatten(-2)


@spatial_op(torch.Tensor.unfold)
def sliding(func: Any, input: Tile, dimension: int, size: int, step: int) -> Tensor:
    """Windows along one dimension; their content becomes a new last dimension."""
    dim = dimension % input.ndim - input.ndim
    if any(d == dim for d, _ in input.placement.joined):
        refuse(func, "the dimension was flattened from several", "Reshape to (N, C, H, W) first")
    n = input.shape[dim]
    torch.empty(n, device="meta").unfold(0, size, step)  # PyTorch's own errors, on every rank
    out = conv_size(n, size, step, 0, 1)
    windows: Any = ()
    if dim in input.placement.dims:
        is_cut = dim in input.placement.cut_dims
        windows = ((dim, SlidingWindow(n, out, size, step) if is_cut else WholeWindow(n, out)),)

    def kernel_call(region: Tensor, plan: WindowPlan) -> Tensor:
        # In front it leaves the other dimensions their numbers from the right.
        return region.unfold(dim, size, step).movedim(-1, 0)

    return windowed(input, windows, kernel_call).movedim(0, -1)


@spatial_op(F.fold)
def fold(
    func: Any,
    input: Tile,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """(N, C·kh·kw, L) → (N, C, H, W), summing where patches overlap: the adjoint of unfold."""
    if -2 in input.placement.cut_dims:
        refuse_split_channels(func)
    kernel, sizes = per_dimension(kernel_size, 2), per_dimension(output_size, 2)
    strides, dilations = per_dimension(stride, 2), per_dimension(dilation, 2)
    pads = per_dimension(padding, 2)
    rows = tuple(conv_size(sizes[d], kernel[d], strides[d], pads[d], dilations[d]) for d in _DIMS)
    patches = input.unflatten(-1, rows)
    if not isinstance(patches, Tile):
        return func(patches.flatten(-2), sizes, kernel, dilations, pads, strides)
    windows = windows_for(
        patches.placement,
        rows,
        sizes,
        lambda d, n, out: TransposedWindow(n, out, kernel[d], strides[d], pads[d], dilations[d]),
    )
    cut = patches.placement.cut_dims
    native = tuple(0 if d in cut else pads[d] for d in _DIMS)

    def kernel_call(region: Tensor, plan: WindowPlan) -> Tensor:
        covered = tuple(
            (region.shape[d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
            if d in cut
            else sizes[d]
            for d in _DIMS
        )
        out: Tensor = func(region.flatten(-2), covered, kernel, dilations, native, strides)
        for (dim, wanted), (_, read) in zip(plan.out, plan.reads, strict=True):
            if dim in cut and not wanted.empty:
                first = read.start * strides[dim] - pads[dim]
                out = out.narrow(dim, wanted.start - first, wanted.size)
        return out

    return windowed(patches, windows, kernel_call)
