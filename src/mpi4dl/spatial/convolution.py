"""Convolutions and transposed convolutions of one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import GeometryError
from ..geometry import SlidingWindow, TransposedWindow, check_output, conv_size, transposed_size
from .additive_halo import Geometry, convolve, is_aligned, pays
from .regions import WindowPlan, Windows, check_ordinary, plan, windowed, windows_for
from .registry import refuse, spatial_op
from .tile import Tile, alias, wrap

_DIMENSIONS = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
    torch.conv_transpose1d: 1,
    torch.conv_transpose2d: 2,
    torch.conv_transpose3d: 3,
}
Sizes = int | Sequence[int]


def per_dimension(value: Sizes, count: int) -> tuple[int, ...]:
    """`3` or `(3,)` or `(3, 3)` as a tuple of `count` numbers."""
    values = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    return values * count if len(values) == 1 else values


def _check_operands(
    func: Any, x: Any, weight: Any, bias: Any, dims: tuple[int, ...], channels: int
) -> None:
    if not isinstance(x, Tile) or isinstance(weight, Tile) or isinstance(bias, Tile):
        refuse(
            func,
            "the weights must be ordinary tensors and the input a tile",
            "Call .full_tensor() on the weights if they were computed from tiles",
        )
    check_ordinary(func, x, dims)
    n = len(dims)
    if x.ndim in (n + 1, n + 2) and weight.ndim == n + 2 and x.shape[-n - 1] != channels:
        raise RuntimeError(
            f"{func.__name__} of {tuple(x.shape)} by weights of {tuple(weight.shape)}: expected "
            f"{channels} channels, but got {x.shape[-n - 1]} channels instead"
        )


def _check_numbers(
    func: Any, strides: Sequence[int], pads: str | Sequence[int], dilations: Sequence[int]
) -> None:
    """What one process refuses, before any window is made of it."""
    name = func.__name__
    if isinstance(pads, str):
        if pads not in ("same", "valid"):
            raise GeometryError(f"{name}: the padding {pads!r} is neither 'same' nor 'valid'")
        if pads == "same" and any(s != 1 for s in strides):
            raise GeometryError(f"{name}: padding='same' is not defined for the strides {strides}")
    elif any(p < 0 for p in pads):
        raise GeometryError(f"{name}: the padding {tuple(pads)} is negative")
    if any(s < 1 for s in strides) or any(d < 1 for d in dilations):
        raise GeometryError(f"{name}: strides {strides} and dilations {dilations} start at 1")


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]


@spatial_op(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(
    func: Any,
    input: Tile,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tile:
    n = _DIMENSIONS[func]
    dims = tuple(range(-n, 0))
    _check_operands(func, input, weight, bias, dims, weight.shape[1] * groups)
    kernel, sizes = tuple(weight.shape[2:]), tuple(input.shape[-n:])
    strides, dilations = per_dimension(stride, n), per_dimension(dilation, n)
    given = padding if isinstance(padding, str) else per_dimension(padding, n)
    _check_numbers(func, strides, given, dilations)
    if given == "same":
        pads = _same_padding(kernel, dilations)
    else:
        pads = [(0, 0)] * n if isinstance(given, str) else [(p, p) for p in given]
    outs = [
        conv_size(size, k, s, p, d)
        for size, k, s, p, d in zip(sizes, kernel, strides, pads, dilations, strict=True)
    ]
    check_output(getattr(func, "__name__", "convolution"), sizes, outs)
    windows = windows_for(
        input,
        sizes,
        outs,
        lambda d, n, out: SlidingWindow(n, out, kernel[d], strides[d], pads[d][0], dilations[d]),
    )
    cut = input.placement.cut_dims
    # Dimensions that are not cut keep PyTorch's own padding; unequal sides are padded first.
    native = [0 if d in cut or pads[d][0] != pads[d][1] else pads[d][0] for d in dims]
    uneven = [(0, 0) if d in cut or pads[d][0] == pads[d][1] else pads[d] for d in dims]

    symmetric = tuple(before for before, _ in pads)
    if _overlaps(input, windows, pads, weight):
        geometry = Geometry(strides, symmetric, tuple(native), dilations, groups)
        out = convolve(alias(input), weight, bias, input.placement, windows, geometry)
        return wrap(out, plan(input.placement, windows).placement)

    def kernel_call(region: Tensor, plan: WindowPlan) -> Tensor:
        if any(after for _, after in uneven):
            region = F.pad(region, [side for pair in reversed(uneven) for side in pair])
        return func(region, weight, bias, strides, native, dilations, groups)

    def native_call(local: Tensor) -> Tensor:
        return func(local, weight, bias, strides, symmetric, dilations, groups)

    even = all(before == after for before, after in pads)
    return windowed(input, windows, kernel_call, native=native_call if even else None)


def _overlaps(x: Tile, windows: Windows, pads: Sequence[tuple[int, int]], weight: Tensor) -> bool:
    """Whether the tile is convolved while its halo is under way. The same on every rank."""
    if x.margin is not None or x.ndim != weight.ndim:
        return False
    if any(before != after for before, after in pads):
        return False
    if not any(isinstance(w, SlidingWindow) for _, w in windows):
        return False
    if plan(x.placement, windows).moves.is_local or not is_aligned(x.placement, windows):
        return False
    shape = alias(x).shape
    others = prod(n for d, n in enumerate(shape, -len(shape)) if d not in x.placement.dims)
    return pays(x.placement, windows, others, weight.numel() // max(shape[1], 1))


@spatial_op(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(
    func: Any,
    input: Tile,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tile:
    n = _DIMENSIONS[func]
    dims = tuple(range(-n, 0))
    _check_operands(func, input, weight, bias, dims, weight.shape[0])
    kernel, sizes = tuple(weight.shape[2:]), tuple(input.shape[-n:])
    strides, pads = per_dimension(stride, n), per_dimension(padding, n)
    extra, dilations = per_dimension(output_padding, n), per_dimension(dilation, n)
    _check_numbers(func, strides, pads, dilations)
    _check_output_padding(extra, strides, dilations)
    outs = [
        transposed_size(size, k, s, p, d, e)
        for size, k, s, p, d, e in zip(sizes, kernel, strides, pads, dilations, extra, strict=True)
    ]
    check_output(getattr(func, "__name__", "transposed convolution"), sizes, outs)
    windows = windows_for(
        input,
        sizes,
        outs,
        lambda d, n, out: TransposedWindow(n, out, kernel[d], strides[d], pads[d], dilations[d]),
    )
    cut = input.placement.cut_dims
    native = [0 if d in cut else pads[d] for d in dims]
    native_extra = [0 if d in cut else extra[d] for d in dims]

    def kernel_call(region: Tensor, plan: WindowPlan) -> Tensor:
        out = func(region, weight, bias, strides, native, native_extra, groups, dilations)
        for (dim, wanted), (_, read) in zip(plan.out, plan.reads, strict=True):
            if dim in cut and not wanted.empty:
                first = read.start * strides[dim] - pads[dim]
                out = out.narrow(dim, wanted.start - first, wanted.size)
        return out

    return windowed(input, windows, kernel_call)


def _check_output_padding(
    extra: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> None:
    for e, s, d in zip(extra, strides, dilations, strict=True):
        if not 0 <= e < max(s, d):
            raise GeometryError(
                f"output_padding {e} must be smaller than the stride {s} or the dilation {d}, and "
                "not negative"
            )
