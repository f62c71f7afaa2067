"""Convolutions and transposed convolutions of one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import GeometryError
from ..geometry import SlidingWindow, TransposedWindow, check_output, conv_size, transposed_size
from .additive_halo import Geometry, convolve, is_aligned, pays
from .placement import Placement
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
    values = (value,) if isinstance(value, int) else tuple(map(int, value))
    return values * count if len(values) == 1 else values


def _check_operands(func: Any, x: Any, weight: Any, bias: Any) -> None:
    if not isinstance(x, Tile) or isinstance(weight, Tile) or isinstance(bias, Tile):
        refuse(
            func,
            "the weights must be ordinary tensors and the input a tile",
            "Call .full_tensor() on the weights if they were computed from tiles",
        )


def _check_channels(
    func: Any, shape: Sequence[int], weight: Sequence[int], n: int, channels: int
) -> None:
    if len(shape) in (n + 1, n + 2) and len(weight) == n + 2 and shape[-n - 1] != channels:
        raise RuntimeError(
            f"{func.__name__} of {tuple(shape)} by weights of {tuple(weight)}: expected "
            f"{channels} channels, but got {shape[-n - 1]} channels instead"
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


@dataclass(frozen=True)
class _Call:
    """Everything about a convolution that shapes determine."""

    windows: Windows
    geometry: Geometry
    even: bool  # the layer pads both sides of every dimension alike
    extra: tuple[int, ...]  # what else has to be padded first, as F.pad wants it
    overlaps: bool  # the tile is convolved while its halo is under way


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
    _check_operands(func, input, weight, bias)
    n, local, placement = _DIMENSIONS[func], alias(input), input.placement
    given = padding if isinstance(padding, str) else per_dimension(padding, n)
    numbers = (per_dimension(stride, n), given, per_dimension(dilation, n), groups)
    call = _call(func, placement, local.shape, weight.shape, *numbers)
    windows, g = call.windows, call.geometry
    if call.overlaps and input.margin is None:
        out = convolve(local, weight, bias, placement, windows, g)
        return wrap(out, plan(placement, windows).placement)

    def kernel_call(region: Tensor, plan: WindowPlan) -> Tensor:
        if call.extra:
            region = F.pad(region, call.extra)
        return func(region, weight, bias, g.stride, g.native, g.dilation, groups)

    def native_call(local: Tensor) -> Tensor:
        return func(local, weight, bias, g.stride, g.padding, g.dilation, groups)

    return windowed(input, windows, kernel_call, native=native_call if call.even else None)


@lru_cache(maxsize=4096)
def _call(
    func: Any,
    placement: Placement,
    local: Sequence[int],
    weight: Sequence[int],
    strides: tuple[int, ...],
    padding: str | tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
) -> _Call:
    """`local` and `weight` are the shapes of these."""
    n = _DIMENSIONS[func]
    dims = tuple(range(-n, 0))
    shape = placement.global_shape(local)
    check_ordinary(func, placement, dims)
    _check_channels(func, shape, weight, n, weight[1] * groups)
    kernel, sizes = tuple(weight[2:]), shape[-n:]
    _check_numbers(func, strides, padding, dilations)
    if padding == "same":
        pads = _same_padding(kernel, dilations)
    else:
        pads = [(0, 0)] * n if isinstance(padding, str) else [(p, p) for p in padding]
    outs = [
        conv_size(size, k, s, p, d)
        for size, k, s, p, d in zip(sizes, kernel, strides, pads, dilations, strict=True)
    ]
    check_output(getattr(func, "__name__", "convolution"), sizes, outs)
    windows = windows_for(
        placement,
        sizes,
        outs,
        lambda d, n, out: SlidingWindow(n, out, kernel[d], strides[d], pads[d][0], dilations[d]),
    )
    cut = placement.cut_dims
    # Dimensions that are not cut keep PyTorch's own padding; unequal sides are padded first.
    native = [0 if d in cut or pads[d][0] != pads[d][1] else pads[d][0] for d in dims]
    uneven = [(0, 0) if d in cut or pads[d][0] == pads[d][1] else pads[d] for d in dims]
    even = all(before == after for before, after in pads)
    return _Call(
        windows=windows,
        geometry=Geometry(strides, tuple(p for p, _ in pads), tuple(native), dilations, groups),
        even=even,
        extra=tuple(n for pair in reversed(uneven) for n in pair) if any(map(any, uneven)) else (),
        overlaps=even and _overlaps(placement, windows, local, weight),
    )


def _overlaps(
    placement: Placement, windows: Windows, local: Sequence[int], weight: Sequence[int]
) -> bool:
    """Whether an evenly padded convolution overlaps with its halo. The same on every rank."""
    sliding = any(isinstance(w, SlidingWindow) for _, w in windows)
    if not sliding or len(local) != len(weight):
        return False
    if plan(placement, windows).moves.is_local or not is_aligned(placement, windows):
        return False
    others = prod(n for d, n in enumerate(local, -len(local)) if d not in placement.dims)
    return pays(placement, windows, others, prod(weight) // max(local[1], 1))


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
    _check_operands(func, input, weight, bias)
    shape = input.global_shape
    check_ordinary(func, input.placement, dims)
    _check_channels(func, shape, weight.shape, n, weight.shape[0])
    kernel, sizes = tuple(weight.shape[2:]), tuple(shape[-n:])
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
        input.placement,
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
