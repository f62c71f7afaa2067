"""Resizing images: `F.interpolate` and what ends in it, in every mode, at every ratio.

Resizing works on each dimension by itself: an output is a weighted sum of a few neighbouring
inputs. A tile's part is computed in one of two ways:

* by periods: where the outputs repeat their pattern every few inputs (twice the size, half, a
  third; without `align_corners`), PyTorch resizes a region of whole periods as an image of its
  own;
* by taps: otherwise a cut dimension is a sum over shifted picks of the region, with the weights
  that PyTorch has for the whole image (`resize_weights.py`).

The result is PyTorch's, and the gradient is the adjoint of that. PyTorch's own gradient is not in
a few corners: bicubic or nearest by a factor that leaves a size as it is (2 · 1.4), and nearest
neighbours at ratios that rounding decides (1 to 41). At those its kernels do not even agree on
the result; tiles follow the one for contiguous images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import GeometryError
from ..geometry import Interval
from .regions import WindowPlan, check_ordinary, windowed, windows_for
from .registry import refuse, spatial_op
from .resize_weights import Line, Manner, sum_of_taps, taps, window
from .tile import Tile

_AREA: tuple[Any, ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
Lines = dict[int, Line]  # for each image dimension, counted from the right


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `F.interpolate`, by everything that all ranks know of it."""

    manner: Manner
    shape: tuple[int, ...]
    size: Any
    scale_factor: Any
    recompute: bool | None

    def __call__(self, image: Tensor) -> Tensor:
        """What was asked for, of a plain tensor."""
        manner = self.manner
        return F.interpolate(
            image,
            self.size,
            self.scale_factor,
            manner.mode,
            manner.align_corners,
            self.recompute,
            manner.antialias,
        )

    @property
    def dims(self) -> range:
        """The image dimensions."""
        return range(2 - len(self.shape), 0)

    def factor(self, dim: int) -> float | None:
        if self.scale_factor is None or self.recompute or self.manner.align_corners:
            return None
        factors = self.scale_factor
        return float(factors[dim] if isinstance(factors, tuple) else factors)


@lru_cache(maxsize=4096)
def _output_shape(call: Call) -> tuple[int, ...]:
    """The global shape of the result; or PyTorch's own error, the same on every rank."""
    manner = call.manner
    if 0 in call.shape[2:]:
        raise GeometryError(f"an image without pixels cannot be resized: {call.shape}")
    out = call(torch.empty(call.shape, dtype=manner.dtype, device="meta"))
    # Whether there is a kernel for the dtype shows only on the device itself.
    pixel = torch.zeros([1] * manner.ndim, dtype=manner.dtype, device=manner.device)
    manner(pixel, size=[1 for _ in call.dims])
    return tuple(out.shape)


@lru_cache(maxsize=4096)
def _lines(call: Call, out: tuple[int, ...]) -> Lines:
    exact = call.manner.dtype == torch.float64
    manner = replace(call.manner, dtype=torch.float64 if exact else torch.float32)
    # For nearest neighbours on small images (128 in both sizes together) there is another kernel.
    limit = 129 if manner.nearest and manner.ndim == 4 else 1

    def across(d: int) -> int:
        # Where no size changes, kernels for CUDA copy, whatever the factors say.
        others_change = any(call.shape[e] != out[e] for e in call.dims if e != d)
        return max(min(limit, out[-3 - d]), 1 + others_change)

    return {d: Line(manner, call.shape[d], out[d], call.factor(d), across(d)) for d in call.dims}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@spatial_op(F.interpolate)
def interpolate(
    func: Any,
    input: Tile,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    device = torch.device("cpu") if input.device.type == "meta" else input.device
    manner = Manner(mode, align_corners, antialias, input.ndim, input.dtype, device)
    shape = tuple(input.shape)
    call = Call(manner, shape, _frozen(size), _frozen(scale_factor), recompute_scale_factor)
    out = _output_shape(call)
    if mode == "area":
        return _AREA[len(call.dims) - 1](input, out[2:])
    check_ordinary(func, input.placement, tuple(call.dims), channels=False)
    cut = [d for d in call.dims if d in input.placement.cut_dims]
    if cut and not manner.nearest and not input.dtype.is_floating_point:
        refuse(
            func,
            f"mode {mode} on an image of {input.dtype} rounds in a way that tiles cannot follow",
            "Convert the image with .float() first",
        )
    lines = _lines(call, out)
    windows = windows_for(input.placement, shape[2:], out[2:], lambda d, n, m: window(lines[d]))
    if not cut:
        return windowed(input, windows, lambda image, _: call(image))
    if all(line.period or (d not in cut and line.left_to_pytorch) for d, line in lines.items()):
        return windowed(input, windows, lambda x, plan: _by_periods(manner, lines, cut, x, plan))
    return windowed(input, windows, lambda x, plan: _by_taps(manner, lines, cut, x, plan))


def _by_periods(
    manner: Manner, lines: Lines, cut: Sequence[int], region: Tensor, plan: WindowPlan
) -> Tensor:
    sizes = {d: line.m for d, line in lines.items()}
    firsts = dict.fromkeys(lines, 0)
    for dim, read in plan.reads:
        period = lines[dim].period
        if dim in cut and period is not None:
            p, q = period
            sizes[dim], firsts[dim] = read.size // p * q, read.start // p * q
    out = manner(region, size=list(sizes.values()))
    for dim, wanted in plan.out:
        if dim in cut and not wanted.empty:
            out = out.narrow(dim, wanted.start - firsts[dim], wanted.size)
    return out


def _by_taps(
    manner: Manner, lines: Lines, cut: Sequence[int], region: Tensor, plan: WindowPlan
) -> Tensor:
    """Dimensions that are not cut by PyTorch, where it can do them alone; the others by taps."""
    out = region if manner.nearest else region.to(lines[cut[0]].manner.dtype)
    by_taps = [d for d, line in lines.items() if d in cut or not line.left_to_pytorch]
    if any(line.n != line.m for d, line in lines.items() if d not in by_taps):
        size = [out.shape[d] if d in by_taps else line.m for d, line in lines.items()]
        out = manner(out, size=size)
    wanted, reads = dict(plan.out), dict(plan.reads)
    # What shrinks goes first, so that the rest has less to do.
    for dim in sorted(by_taps, key=lambda d: lines[d].m / lines[d].n):
        line = lines[dim]
        rows, origin = Interval(0, line.m), 0
        if dim in cut:
            rows, origin = wanted[dim], reads[dim].start
        if rows.empty:  # a rank without output computes output 0 from a phantom region
            rows, origin = Interval(0, 1), window(line).first[0]
        out = sum_of_taps(out, dim, taps(line, rows, origin))
    out = out.to(region.dtype)
    return out if region.is_contiguous() else out.contiguous(memory_format=_format(region))


def _format(like: Tensor) -> torch.memory_format:
    for ndim, memory in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if like.ndim == ndim and like.is_contiguous(memory_format=memory):
            return memory
    return torch.contiguous_format
