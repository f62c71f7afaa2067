"""Max, average and Lp pooling with windows of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import GeometryError
from ..geometry import SlidingWindow, check_output, pool_size
from .borders import Borders, borders, fits_tiles
from .convolution import Sizes, per_dimension
from .halo_pool import AverageKernel, MaxKernel, PoolKernel, counted, pool, rounded_down, rounded_up
from .placement import Placement
from .regions import WindowPlan, check_ordinary, plan, windowed, windows_for
from .registry import named, refuse, spatial_op
from .tile import Tile, alias, wrap


class _Geometry:
    """The sizes of one pooling call, the same on every rank."""

    def __init__(
        self,
        func: Any,
        placement: Placement,
        shape: Sequence[int],
        count: int,
        kernel: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
    ) -> None:
        """Over the last `count` dimensions of a tensor of the global `shape`."""
        check_ordinary(func, placement, tuple(range(-count, 0)), channels=False)
        self.placement, self.ndim = placement, len(shape)
        self.kernel = per_dimension(kernel, count)
        # PyTorch reads an empty stride as the kernel size.
        self.stride = per_dimension(stride, count) if stride not in (None, ()) else self.kernel
        self.padding = per_dimension(padding, count)
        self.dilation = per_dimension(dilation, count)
        self.ceil_mode = ceil_mode
        self.sizes = tuple(shape[-count:])
        numbers = (*self.kernel, *self.stride, *self.dilation)
        if any(number < 1 for number in numbers) or any(p < 0 for p in self.padding):
            raise GeometryError(
                f"pooling with the kernel {self.kernel}, stride {self.stride}, dilation "
                f"{self.dilation} and padding {self.padding}: these start at 1, and padding at 0"
            )
        if any(p > k // 2 for p, k in zip(self.padding, self.kernel, strict=True)):
            raise GeometryError(
                f"pooling padding {self.padding} is more than half of the kernel {self.kernel}"
            )
        self.outs = tuple(
            pool_size(n, k, s, p, d, ceil_mode)
            for n, k, s, p, d in zip(
                self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        check_output(getattr(func, "__name__", "pooling"), self.sizes, self.outs)
        self.windows = windows_for(placement, self.sizes, self.outs, self._window)

    def _window(self, dim: int, n: int, out: int) -> SlidingWindow:
        return SlidingWindow(
            n, out, self.kernel[dim], self.stride[dim], self.padding[dim], self.dilation[dim]
        )

    def native(self, values: Sequence[int]) -> list[int]:
        """`values` in the dimensions that are not cut, 0 in the others."""
        cut = self.placement.cut_dims
        return [0 if d in cut else values[d] for d in range(-len(values), 0)]

    def overlapping(self, x: Tile, kernel: PoolKernel) -> Tile | None:
        """The tile pooled while its halo is under way, where that is possible (on all ranks)."""
        around = self._around
        if around is None or x.margin is not None or not (local := alias(x)).is_floating_point():
            return None
        out = pool(local, kernel, around, self.placement.comm)
        return wrap(out, plan(self.placement, self.windows).placement)

    @cached_property
    def _around(self) -> Borders | None:
        count, placement = len(self.kernel), self.placement
        made_of = rounded_up if self.ceil_mode else rounded_down
        if count == 1 or plan(placement, self.windows).moves.is_local:
            return None
        if not fits_tiles(placement, self.windows, made_of):
            return None
        dims = range(-count, 0)
        sliding = tuple((d, self._window(d, self.sizes[d], self.outs[d])) for d in dims)
        return borders(placement, sliding, self.ndim)


_made = lru_cache(maxsize=4096)(_Geometry)


def _geometry(
    func: Any,
    x: Tile,
    count: int,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> _Geometry:
    numbers = (tuple(v) if isinstance(v, list) else v for v in (kernel, stride, padding, dilation))
    return _made(func, x.placement, x.global_shape, count, *numbers, ceil_mode)


_MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Callable[..., Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@spatial_op(*named("max_pool1d", "max_pool2d", "max_pool3d"))
def max_pool(
    func: Any,
    input: Tile,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tile:
    if return_indices:
        max_pool_with_indices(func)
    count = int(func.__name__[8])
    g = _geometry(func, input, count, kernel_size, stride, padding, dilation, ceil_mode)
    local = alias(input)
    if local.dtype == torch.bool or local.is_complex():
        raise NotImplementedError(f"{func.__name__} is not implemented for {local.dtype}")
    overlapping = g.overlapping(
        input, MaxKernel(g.kernel, g.stride, g.padding, g.dilation, ceil_mode)
    )
    if overlapping is not None:
        return overlapping
    lowest = float("-inf") if local.is_floating_point() else torch.iinfo(local.dtype).min

    def kernel(region: Tensor, plan: WindowPlan) -> Tensor:
        pads = g.native(g.padding)
        # In cut dimensions the region holds whole windows, so that rounding up changes nothing.
        return _MAX[count](region, g.kernel, g.stride, pads, g.dilation, ceil_mode)

    def native(local: Tensor) -> Tensor:
        return _MAX[count](local, g.kernel, g.stride, g.padding, g.dilation)

    return windowed(input, g.windows, kernel, fill=lowest, native=None if ceil_mode else native)


@spatial_op(
    *(named("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"))
)
def max_pool_with_indices(func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(
        func,
        "indices into the whole image are not kept on tiles",
        "Use return_indices=False; for unpooling use interpolate or a transposed convolution",
    )


@spatial_op(*named("avg_pool1d"))
def avg_pool1d(
    func: Any,
    input: Tile,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tile:
    return _average(
        func, input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None
    )


@spatial_op(*named("avg_pool2d", "avg_pool3d"))
def avg_pool(
    func: Any,
    input: Tile,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tile:
    if divisor_override == 0:
        raise GeometryError("the divisor of an average must not be zero")
    count = int(func.__name__[8])
    return _average(
        func,
        input,
        count,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
    )


def _average(
    func: Any,
    x: Tile,
    count: int,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tile:
    """Sums over whole windows, divided by how many cells of each window count.

    The divisor differs only where a window hangs over the image's border, which a rank knows
    from the global position of its outputs.
    """
    g = _geometry(func, x, count, kernel_size, stride, padding, 1, ceil_mode)
    if count == 3 and any(n < k for n, k in zip(g.sizes, g.kernel, strict=True)):
        raise GeometryError(f"an image of {g.sizes} is smaller than the kernel {g.kernel}")
    overlapping = g.overlapping(
        x,
        AverageKernel(
            g.sizes, g.kernel, g.stride, g.padding, ceil_mode, count_include_pad, divisor
        ),
    )
    if overlapping is not None:
        return overlapping

    def kernel(region: Tensor, plan: WindowPlan) -> Tensor:
        whole = dict(plan.out)
        counts = []
        for dim in range(-count, 0):
            start, stop = (whole[dim].start, whole[dim].stop) if dim in whole else (0, g.outs[dim])
            outputs = range(start, max(stop, start + 1))
            size = (g.sizes[dim], g.kernel[dim], g.stride[dim], g.padding[dim])
            counts.append(counted(*size, outputs, count_include_pad))
        if divisor is not None or all(len(set(c)) == 1 for c in counts):
            common = divisor if divisor is not None else prod(c[0] for c in counts)
            return _window_sums(region, g, x, common)
        half = region.dtype in (torch.bfloat16, torch.float16)  # whose sums overflow
        sums = _window_sums(region.float() if half else region, g, x)
        rounding = None if region.is_floating_point() else "trunc"
        for dim, c in zip(range(-count, 0), counts, strict=True):
            share = sums.new_tensor(c).view(-1, *[1] * (-dim - 1))
            sums = torch.div(sums, share, rounding_mode=rounding)
        return sums.to(region.dtype)

    def native(local: Tensor) -> Tensor:
        options = [] if count == 1 else [divisor]
        return _AVERAGE[count](
            local, g.kernel, g.stride, g.padding, False, count_include_pad, *options
        )

    return windowed(x, g.windows, kernel, native=None if ceil_mode else native)


def _window_sums(region: Tensor, g: _Geometry, x: Tile, divisor: int = 1) -> Tensor:
    """Sums over windows, divided. Uncut dimensions are padded here, for ceil_mode too."""
    count = len(g.kernel)
    cut = x.placement.cut_dims
    for dim in range(-count, 0):
        if dim not in cut:
            # The last window may end before the padding does, or reach beyond it.
            reach = (g.outs[dim] - 1) * g.stride[dim] + g.kernel[dim]
            after = reach - g.padding[dim] - g.sizes[dim]
            if g.padding[dim] or after > 0:
                sides = [0] * (2 * -dim)
                sides[-2:] = [g.padding[dim], max(after, 0)]
                region = F.pad(region, sides)
    if count == 1:
        sums = F.avg_pool2d(
            region.unsqueeze(-2), (1, g.kernel[0]), (1, g.stride[0]), divisor_override=divisor
        )
        return sums.squeeze(-2)
    pool = F.avg_pool2d if count == 2 else F.avg_pool3d
    return pool(region, g.kernel, g.stride, divisor_override=divisor)


@spatial_op(*named("lp_pool1d", "lp_pool2d", "lp_pool3d"))
def lp_pool(
    func: Any,
    input: Tile,
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(Σ xᵖ)^(1/p) over each window; where the sum is zero the gradient is zero, not infinite."""
    count = int(func.__name__[7])
    if norm_type in (float("inf"), float("-inf")):
        sign = 1 if norm_type > 0 else -1
        return sign * _MAX[count](sign * input.abs(), kernel_size, stride, ceil_mode=ceil_mode)
    sums = _AVERAGE[count](input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    sums = sums * prod(per_dimension(kernel_size, count))
    # relu passes nothing back at zero, where the root's slope is infinite.
    return (sums.sign() * sums.abs().relu()).pow(1.0 / norm_type)
