"""Resizing images: `F.interpolate` and what ends in it, in every mode, at every ratio.

Resizing works on each dimension by itself: an output is a weighted sum of a few neighbouring
inputs. Two kernels compute a tile's part:

* where the outputs repeat their pattern every few inputs (a ratio p/q of small numbers, without
  `align_corners`), a region made of whole periods is resized by PyTorch as an image of its own,
  and cropped;
* otherwise each cut dimension is a sum of taps, with the weights that PyTorch has for the whole
  image. They are measured by letting PyTorch resize a line of that length, once for a shape.

Nearest neighbours at a ratio whose rounding errors decide (such as 1 to 41) are those of
PyTorch's kernel for contiguous images; its kernels do not agree with each other there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, floor, gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..geometry import Interval, TableWindow, Window
from .registry import refuse, spatial_op
from .regions import WindowPlan, check_ordinary, windowed, windows_for
from .tile import Tile

_REACH = {"linear": 1, "bilinear": 1, "trilinear": 1, "bicubic": 2, "lanczos": 3}
_AREA = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
_LONGEST_PERIOD = 8  # inputs; a region is widened to whole periods, so longer ones cost halo
_PROBES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `F.interpolate`, by everything that all ranks know of it."""

    shape: tuple[int, ...]
    size: Any
    scale_factor: Any
    mode: str
    align_corners: bool | None
    recompute: bool | None
    antialias: bool
    dtype: torch.dtype
    device: torch.device

    def __call__(self, x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
        """Resize another tensor in the same manner."""
        return F.interpolate(
            x, size, scale_factor, self.mode, self.align_corners, antialias=self.antialias
        )

    @property
    def dims(self) -> range:
        """The image dimensions."""
        return range(2 - len(self.shape), 0)

    @property
    def nearest(self) -> bool:
        return self.mode in ("nearest", "nearest-exact")

    def factor(self, dim: int) -> float | None:
        """The scale factor by which PyTorch maps coordinates; None if it uses the sizes."""
        if self.scale_factor is None or self.recompute or self.align_corners:
            return None
        factors = self.scale_factor
        return float(factors[dim] if isinstance(factors, tuple) else factors)


@lru_cache(maxsize=4096)
def _output_shape(call: Call) -> tuple[int, ...]:
    """The global shape of the result; or PyTorch's own error, the same on every rank."""
    image = torch.empty(call.shape, dtype=call.dtype, device="meta")
    out = F.interpolate(
        image,
        call.size,
        call.scale_factor,
        call.mode,
        call.align_corners,
        call.recompute,
        call.antialias,
    )
    # Whether there is a kernel for the dtype shows only on the device itself.
    pixel = torch.zeros([1] * len(call.shape), dtype=call.dtype, device=call.device)
    call(pixel, size=[1 for _ in call.dims])
    return tuple(out.shape)


@dataclass(frozen=True)
class Line:
    """One dimension of a call: `n` inputs become `m` outputs."""

    call: Call  # with nothing of the other dimensions in it
    n: int
    m: int
    factor: float | None
    across: int  # outputs in the next dimension, as far as they matter for nearest neighbours

    @property
    def by_size(self) -> bool:
        """PyTorch would do the same if it were given the output size alone."""
        if self.factor is None:
            return True
        if self.call.nearest:
            return 1 / self.factor == self.n / self.m
        return self.n * self.factor == self.m

    @cached_property
    def period(self) -> tuple[int, int] | None:
        """(p, q) if q outputs over p inputs are a pattern that repeats from pixel 0 on."""
        common = gcd(self.n, self.m)
        p, q = self.n // common, self.m // common
        if self.call.align_corners or not self.by_size or p > _LONGEST_PERIOD:
            return None
        # Nearest neighbours must not depend on rounding: p/q has to be exact in binary.
        return None if self.call.nearest and q & (q - 1) else (p, q)

    def resized(self, lines: Tensor) -> Tensor:
        """PyTorch's answer for some lines (K, n) → (K, m)."""
        others = len(self.call.shape) - 3
        x = lines.view(1, len(lines), self.n, *[1] * others)
        across = [self.across, *[1] * others][:others]
        if self.factor is None:
            y = self.call(x, size=[self.m, *across])
        else:
            y = self.call(x, scale_factor=[self.factor, *map(float, across)])
        return y.reshape(len(lines), self.m, -1)[..., 0]


@dataclass(frozen=True, eq=False)
class Band:
    """Output o is the sum over t of `weights[t, o] · input[start[o] + t]`; `start` rises.

    Without weights it is that one input itself.
    """

    start: Tensor
    weights: Tensor | None

    @property
    def taps(self) -> int:
        return 1 if self.weights is None else len(self.weights)


@lru_cache(maxsize=1024)
def _band(line: Line) -> Band:
    # Kept for later calls, which may want to differentiate: no inference tensors here.
    with torch.inference_mode(False), torch.no_grad():
        ramp = torch.arange(line.n, dtype=line.call.dtype, device=line.call.device)
        expected = line.resized(ramp[None])[0]
        if line.call.nearest:
            return Band(expected.long(), None)
        band = _measured(line)
        assert band.weights is not None
        taps = torch.arange(band.taps, device=line.call.device)[:, None]
        found = (band.weights * (band.start + taps)).sum(0)
        if (found - expected).abs().max() > 1e-2 + 1e-6 * line.n:
            raise RuntimeError(f"PyTorch's mode {line.call.mode} reads unexpected pixels: {line}")
        return band


def _measured(line: Line) -> Band:
    """The weights, from combs: with teeth further apart than the taps reach, each answer is one
    weight."""
    n, m, call = line.n, line.m, line.call
    if call.align_corners:
        scale = (n - 1) / (m - 1) if m > 1 else 0.0
    else:
        scale = 1 / line.factor if line.factor else n / m
    reach = ceil(_REACH[call.mode] * (max(scale, 1.0) if call.antialias else 1.0)) + 2
    width = min(2 * reach + 1, n)
    middle = 0.0 if call.align_corners and not call.antialias else 0.5
    centres = [floor((o + middle) * scale - middle) for o in range(m)]
    base = (torch.tensor(centres, device=call.device) - reach).clamp(0, n - width)

    teeth = torch.arange(n, device=call.device) % width
    combs = torch.arange(width, device=call.device).split(_PROBES_AT_ONCE)
    answers = torch.cat([line.resized((teeth == j[:, None]).to(call.dtype)) for j in combs])
    offsets = torch.arange(width, device=call.device)[:, None]
    weights = answers.gather(0, (base + offsets) % width)  # (width, m), of input base + offset

    used = (weights != 0).byte()
    first = base + used.argmax(0)
    last = base + width - 1 - used.flip(0).argmax(0)
    start = first.flip(0).cummin(0).values.flip(0)  # rising, and at or before every first tap
    taps = int((last - start).max()) + 1
    start = start.clamp(max=n - taps)
    return Band(start, weights.gather(0, start - base + offsets[:taps]))


@lru_cache(maxsize=1024)
def _window(line: Line) -> TableWindow:
    band = _band(line)
    period = line.period[0] if line.period else 1
    first = band.start.tolist()
    return TableWindow(
        line.n,
        line.m,
        tuple(i // period * period for i in first),
        tuple((i + band.taps - 1) // period * period + period - 1 for i in first),
    )


@lru_cache(maxsize=4096)
def _taps(line: Line, out: Interval, origin: int) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """Index into a region that starts at `origin`, and weight, of every tap of some outputs."""
    band = _band(line)
    with torch.inference_mode(False), torch.no_grad():
        start = band.start[out.start : out.stop] - origin
        if band.weights is None:
            return ((start, None),)
        weights = band.weights[:, out.start : out.stop]
        return tuple((start + t, w.contiguous()) for t, w in enumerate(weights))


def _picked(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if dim != -1:
        return x.index_select(dim, index)
    # Along the last dimension gather is several times faster, forward and backward.
    return x.gather(-1, index.expand(*x.shape[:-1], len(index)))


def _sum_of_taps(x: Tensor, dim: int, taps: tuple[tuple[Tensor, Tensor | None], ...]) -> Tensor:
    total: Tensor | None = None
    for index, weight in taps:
        picked = _picked(x, dim, index)
        if weight is None:
            return picked
        weight = weight.view(-1, *[1] * (-1 - dim))
        total = picked.mul_(weight) if total is None else total.addcmul_(picked, weight)
    assert total is not None
    return total


def _lines(call: Call, out: tuple[int, ...]) -> dict[int, Line]:
    dtype = torch.float64 if call.dtype == torch.float64 else torch.float32
    alone = replace(
        call,
        shape=(1,) * len(call.shape),
        size=None,
        scale_factor=None,
        recompute=None,
        dtype=dtype,
    )
    # For small outputs in two dimensions PyTorch has another nearest-neighbour kernel.
    limit = 129 if call.nearest and len(call.shape) == 4 else 1
    return {
        d: Line(alone, call.shape[d], out[d], call.factor(d), min(limit, out[-3 - d]))
        for d in call.dims
    }


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
    call = Call(
        tuple(input.shape),
        tuple(size) if isinstance(size, list) else size,
        tuple(scale_factor) if isinstance(scale_factor, list) else scale_factor,
        mode,
        align_corners,
        recompute_scale_factor,
        antialias,
        input.dtype,
        input.device,
    )
    out = _output_shape(call)
    outs = out[2:]
    if mode == "area":
        return _AREA[len(outs)](input, outs)  # type: ignore[operator, no-any-return]
    check_ordinary(func, input, tuple(call.dims), channels=False)
    cut = [d for d in call.dims if d in input.placement.cut_dims]
    if cut and not call.nearest and not input.dtype.is_floating_point:
        refuse(
            func,
            f"mode {mode} on an image of {input.dtype} rounds in a way that tiles cannot follow",
            "Convert the image with .float() first",
        )
    lines = _lines(call, out)

    def make(dim: int, n: int, m: int) -> Window:
        return _window(lines[dim])

    windows = windows_for(input, call.shape[2:], outs, make)
    if not cut:
        return windowed(input, windows, lambda x, _: _plainly(call, x))
    if all(_by_pytorch(call, lines[d], d in cut) for d in call.dims):
        return windowed(input, windows, lambda x, plan: _by_periods(call, lines, cut, x, plan))
    return windowed(input, windows, lambda x, plan: _by_taps(call, lines, cut, x, plan))


def _plainly(call: Call, image: Tensor) -> Tensor:
    """Nothing is cut: PyTorch's own way."""
    return F.interpolate(
        image,
        call.size,
        call.scale_factor,
        call.mode,
        call.align_corners,
        call.recompute,
        call.antialias,
    )


def _by_pytorch(call: Call, line: Line, cut: bool) -> bool:
    """Whether a region of whole periods can be resized as an image, given its output size."""
    return line.period is not None or (not cut and not call.nearest and line.by_size)


def _by_periods(
    call: Call, lines: dict[int, Line], cut: Sequence[int], region: Tensor, plan: WindowPlan
) -> Tensor:
    sizes = {d: line.m for d, line in lines.items()}
    firsts = dict.fromkeys(lines, 0)
    for dim, read in plan.reads:
        period = lines[dim].period
        if dim in cut and period is not None:
            p, q = period
            sizes[dim], firsts[dim] = read.size // p * q, read.start // p * q
    out = call(region, size=list(sizes.values()))
    for dim, wanted in plan.out:
        if dim in cut and not wanted.empty:
            out = out.narrow(dim, wanted.start - firsts[dim], wanted.size)
    return out


def _by_taps(
    call: Call, lines: dict[int, Line], cut: Sequence[int], region: Tensor, plan: WindowPlan
) -> Tensor:
    """Dimensions that are not cut by PyTorch, where it can do them alone; the others by taps."""
    out = region if call.nearest else region.to(lines[cut[0]].call.dtype)
    by_taps = list(lines) if call.nearest else list(cut)
    if len(by_taps) < len(lines):
        out = _others_resized(call, lines, by_taps, out)
    wanted, reads = dict(plan.out), dict(plan.reads)
    for dim in sorted(by_taps, key=lambda d: lines[d].m / lines[d].n):
        line = lines[dim]
        rows, origin = wanted.get(dim, Interval(0, line.m)), 0
        if dim in cut:
            origin = reads[dim].start
        if rows.empty:  # a rank without output computes output 0 of a phantom region
            rows, origin = Interval(0, 1), int(_window(line).first[0])
        out = _sum_of_taps(out, dim, _taps(line, rows, origin))
    out = out.to(region.dtype)
    return out if region.is_contiguous() else out.contiguous(memory_format=_format(region))


def _others_resized(
    call: Call, lines: dict[int, Line], kept: Sequence[int], region: Tensor
) -> Tensor:
    if all(line.by_size for d, line in lines.items() if d not in kept):
        return call(
            region,
            size=[region.shape[d] if d in kept else line.m for d, line in lines.items()],
        )
    return call(
        region,
        scale_factor=[1.0 if d in kept else line.factor or 1.0 for d, line in lines.items()],
    )


def _format(like: Tensor) -> torch.memory_format:
    for ndim, memory in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if like.ndim == ndim and like.is_contiguous(memory_format=memory):
            return memory
    return torch.contiguous_format
