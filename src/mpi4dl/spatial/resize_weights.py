"""Which inputs, with which weights, PyTorch adds up when it resizes one dimension.

Nobody writes PyTorch's formulas down a second time here: PyTorch is asked to resize a few lines
of the length in question, and its answers are the weights. Once for a shape; then cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, floor, gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..geometry import Interval, TableWindow

_REACH = {"linear": 1, "bilinear": 1, "trilinear": 1, "bicubic": 2, "lanczos": 3}
_LONGEST_PERIOD = 8  # inputs; a region is widened to whole periods, so longer ones cost halo
_LINES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Manner:
    """Everything that `F.interpolate` is told but the sizes; and what it computes with."""

    mode: str
    align_corners: bool | None
    antialias: bool
    ndim: int
    dtype: torch.dtype
    device: torch.device

    def __call__(self, x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
        """Resize a tensor in this manner."""
        return F.interpolate(
            x, size, scale_factor, self.mode, self.align_corners, antialias=self.antialias
        )

    @property
    def nearest(self) -> bool:
        return self.mode in ("nearest", "nearest-exact")


@dataclass(frozen=True)
class Line:
    """One dimension of a call: `n` inputs become `m` outputs."""

    manner: Manner
    n: int
    m: int
    factor: float | None  # by which PyTorch maps coordinates; None if it uses the sizes
    across: int = 1  # outputs in another dimension; they may decide about PyTorch's kernel

    @property
    def by_size(self) -> bool:
        """PyTorch would do the same if it were given the output size alone."""
        return self.factor is None or 1 / self.factor == self.n / self.m

    @property
    def left_to_pytorch(self) -> bool:
        """Where it is not cut, PyTorch can do it in a call for a region of any other extent."""
        return self.by_size and not self.manner.nearest and not self.manner.antialias

    @cached_property
    def period(self) -> tuple[int, int] | None:
        """(p, q) if a region of k·p inputs from a multiple of p on has its k·q outputs as an
        image of its own would; None if that is not so, or needs too much of the neighbours.

        p/q has to be exact in binary. Otherwise PyTorch's coordinates are rounded, differently
        far from the origin: the nearest neighbour is another one, a weight is off by 1e-3.
        """
        common = gcd(self.n, self.m)
        p, q = self.n // common, self.m // common
        if self.manner.align_corners or self.manner.antialias or not self.by_size:
            return None
        return None if q & (q - 1) or p > _LONGEST_PERIOD else (p, q)

    def resized(self, lines: Tensor) -> Tensor:
        """PyTorch's answer for some lines (K, n) → (K, m)."""
        # Along the last dimension: PyTorch's antialiasing is wrong where the width is 1.
        others = self.manner.ndim - 3
        across = [*[1] * others, self.across][1:]
        x = lines.view(1, len(lines), *[1] * others, self.n)
        if self.factor is None:
            y = self.manner(x, size=[*across, self.m])
        else:
            y = self.manner(x, scale_factor=[*map(float, across), self.factor])
        return y.reshape(len(lines), -1, self.m)[:, 0]


@dataclass(frozen=True, eq=False)
class Band:
    """Output o is the sum over t of `weights[t, o] · input[start[o] + t]`; `start` rises.

    Without weights it is that one input itself.
    """

    start: Tensor
    weights: Tensor | None

    @property
    def reach(self) -> int:
        return 1 if self.weights is None else len(self.weights)


@lru_cache(maxsize=1024)
def band(line: Line) -> Band:
    # Kept for later calls, which may want to differentiate: no inference tensors here.
    with torch.inference_mode(False), torch.no_grad():
        ramp = torch.arange(line.n, dtype=line.manner.dtype, device=line.manner.device)
        expected = line.resized(ramp[None])[0]
        if line.manner.nearest:
            return Band(expected.long(), None)
        found = _measured(line)
        assert found.weights is not None
        offsets = torch.arange(found.reach, device=ramp.device)[:, None]
        centres = (found.weights * (found.start + offsets)).sum(0)
        if (centres - expected).abs().max() > 1e-2 + 1e-6 * line.n:
            raise RuntimeError(f"PyTorch's weights are not where they were expected: {line}")
        return found


def _measured(line: Line) -> Band:
    """The weights, from combs: with teeth further apart than an output reaches, each answer is
    one weight."""
    n, device = line.n, line.manner.device
    far = _farthest(line)
    width = min(2 * far + 1, n)
    base = (torch.tensor(_centres(line), device=device) - far).clamp(0, n - width)

    teeth = torch.arange(n, device=device) % width
    combs = torch.arange(width, device=device).split(_LINES_AT_ONCE)
    answers = torch.cat([line.resized((teeth == c[:, None]).to(line.manner.dtype)) for c in combs])
    offsets = torch.arange(width, device=device)[:, None]
    weights = answers.gather(0, (base + offsets) % width)  # (width, m): of input base + offset

    used = (weights != 0).byte()
    first = base + used.argmax(0)
    last = base + width - 1 - used.flip(0).argmax(0)
    start = first.flip(0).cummin(0).values.flip(0)  # rising, and not after any first input
    reach = int((last - start).max()) + 1
    start = start.clamp(max=n - reach)
    return Band(start, weights.gather(0, start - base + offsets[:reach]))


def _scale(line: Line) -> float:
    """Inputs for each output."""
    if line.manner.align_corners:
        return (line.n - 1) / (line.m - 1) if line.m > 1 else 0.0
    return 1 / line.factor if line.factor else line.n / line.m


def _farthest(line: Line) -> int:
    """No output reads further than this from its centre, rounding included."""
    stretch = max(_scale(line), 1.0) if line.manner.antialias else 1.0
    return ceil(_REACH[line.manner.mode] * stretch) + 2


def _centres(line: Line) -> list[int]:
    middle = 0.0 if line.manner.align_corners and not line.manner.antialias else 0.5
    return [floor((o + middle) * _scale(line) - middle) for o in range(line.m)]


@lru_cache(maxsize=1024)
def window(line: Line) -> TableWindow:
    """What an output reads, widened to whole periods where there are any."""
    of = band(line)
    period = line.period[0] if line.period else 1
    first = of.start.tolist()
    return TableWindow(
        line.n,
        line.m,
        tuple(i // period * period for i in first),
        tuple((i + of.reach - 1) // period * period + period - 1 for i in first),
    )


Tap = tuple[Tensor, Tensor | None]


@lru_cache(maxsize=4096)
def taps(line: Line, out: Interval, origin: int) -> tuple[Tap, ...]:
    """For the outputs `out`: where in a region that starts at `origin` their inputs are, and the
    weights of these."""
    of = band(line)
    with torch.inference_mode(False), torch.no_grad():
        start = of.start[out.start : out.stop] - origin
        if of.weights is None:
            return ((start, None),)
        weights = of.weights[:, out.start : out.stop]
        return tuple((start + t, w.contiguous()) for t, w in enumerate(weights))


def sum_of_taps(x: Tensor, dim: int, taps: tuple[Tap, ...]) -> Tensor:
    """Resize one (negative) dimension."""
    total: Tensor | None = None
    for index, weight in taps:
        picked = _picked(x, dim, index)
        if weight is None:
            return picked
        weight = weight.view(-1, *[1] * (-1 - dim))
        total = picked.mul_(weight) if total is None else total.addcmul_(picked, weight)
    assert total is not None
    return total


def _picked(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if dim != -1:
        return x.index_select(dim, index)
    # Along the last dimension gather is several times faster, forward and backward.
    return x.gather(-1, index.expand(*x.shape[:-1], len(index)))
