"""What this machine can do, measured in a minute: one rank on each core, all at once.

Kernels are measured at a few sizes, on memory that is there already; what it costs to get memory
from the system is measured by itself. So are messages, and what a step costs beside all that.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from .device import Curve, signature
from .recorder import Convolution

_MOST_MAPPED, _MAPPED_FROM, _TRIM = -4, -3, -1  # of mallopt

_FLOAT = 4
_CACHES = 2**26
"""Bytes that no cache holds."""

_SIZES = (2**12, 2**16, 2**19, 2**21, 2**22, 2**23, 2**24)
"""Numbers of a tensor."""

GENERIC = (
    *((k, s, i, o) for k in (1, 3) for i, o in ((16, 16), (64, 64), (256, 256)) for s in (1, 2)),
    *((1, 1, i, o) for i, o in ((64, 256), (256, 64), (512, 2048), (2048, 512))),
    *((3, 1, i, o) for i, o in ((128, 128), (512, 512))),
    *((k, s, 3, o) for k, s, o in ((3, 1, 16), (7, 2, 64), (3, 2, 16))),
)
"""Convolutions (kernel, stride, channels) that most networks have something like."""

_PIXELS = (14**2, 56**2, 224**2)


def keep_memory() -> None:
    """What is freed is used again, and not given back: kernels alone are measured."""
    _allocator((_MOST_MAPPED, 0), (_TRIM, 2**31 - 1))


def return_at_once() -> None:
    """What is freed is given back: what is resident is in use."""
    _allocator((_MAPPED_FROM, 2**16), (_TRIM, 2**16))


def as_usual() -> None:
    """The limits at which glibc's own adjustment ends, when large blocks come and go."""
    _allocator((_MOST_MAPPED, 2**16), (_MAPPED_FROM, 2**25), (_TRIM, 2**26))


def _allocator(*settings: tuple[int, int]) -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for setting in settings:
            libc.mallopt(*setting)


def seconds(do: Callable[[], object], least: float = 0.02, rounds: int = 3) -> float:
    """The median of a few rounds, each as long as `least`."""
    do()
    started = time.perf_counter()
    do()
    once = time.perf_counter() - started
    count = max(1, min(200, int(least / max(once, 1e-7))))
    took = [once] if count == 1 else []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            do()
        took.append((time.perf_counter() - started) / count)
    return statistics.median(took)


# ── what is bound by memory ──────────────────────────────────────────────────────────────────────


def elementwise(names: Collection[str] | None = None) -> Iterator[tuple[str, Curve]]:
    makers = {
        "add": _add,
        "add_": _add_in_place,
        "relu": _relu,
        "relu_": _relu_in_place,
        "copy_": _copy,
        "fill_": _fill,
        "threshold_backward": _threshold,
        "native_batch_norm": _norm,
        "native_batch_norm_backward": _norm_backward,
        "max_pool2d_with_indices": _max_pool,
        "max_pool2d_with_indices_backward": _max_pool_backward,
        "avg_pool2d": _avg_pool,
        "avg_pool2d_backward": _avg_pool_backward,
    }
    for name, make in makers.items():
        if names is not None and name not in names:
            continue
        points = []
        for count in _SIZES:
            side = int((count / 16) ** 0.5)
            copies = min(64, max(1, _CACHES // (4 * count)))
            calls = [make(torch.rand(1, 16, side, side)) for _ in range(copies)]
            points.append((float(calls[0][1]), seconds(_in_turn([do for do, _ in calls]))))
        yield name, tuple(points)


def _in_turn(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """One after the other, so that none finds its operands in a cache."""
    turns = cycle(calls)
    return lambda: next(turns)()


Made = tuple[Callable[[], object], int]


def _size(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _add(x: Tensor) -> Made:
    y = torch.rand_like(x)
    return lambda: x + y, 3 * _size(x)


def _add_in_place(x: Tensor) -> Made:
    y = torch.rand_like(x)
    return lambda: y.add_(x), 3 * _size(x)


def _relu(x: Tensor) -> Made:
    return x.relu, 2 * _size(x)


def _relu_in_place(x: Tensor) -> Made:
    return x.relu_, 2 * _size(x)


def _copy(x: Tensor) -> Made:
    y = torch.empty_like(x)
    return lambda: y.copy_(x), 3 * _size(x)


def _fill(x: Tensor) -> Made:
    return lambda: x.fill_(1.0), 2 * _size(x)


def _threshold(x: Tensor) -> Made:
    y = torch.rand_like(x)
    return lambda: torch.ops.aten.threshold_backward(y, x, 0), 3 * _size(x)


def _norm(x: Tensor) -> Made:
    w, b = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    call = torch.ops.aten.native_batch_norm
    return lambda: call(x, w, b, mean, var, True, 0.1, 1e-5), 2 * _size(x)


def _norm_backward(x: Tensor) -> Made:
    w, b = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
    _, mean, inverse = torch.ops.aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    call, g = torch.ops.aten.native_batch_norm_backward, torch.rand_like(x)
    every = [True, True, True]
    return lambda: call(g, x, w, None, None, mean, inverse, True, 1e-5, every), 3 * _size(x)


def _max_pool(x: Tensor) -> Made:
    out, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    return lambda: F.max_pool2d(x, 3, 2, 1, return_indices=True), _size(x, out, at)


def _max_pool_backward(x: Tensor) -> Made:
    out, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    call = torch.ops.aten.max_pool2d_with_indices_backward
    args = (out, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at)
    return lambda: call(*args), _size(out, x, at, x)


def _avg_pool(x: Tensor) -> Made:
    return lambda: F.avg_pool2d(x, 3, 1, 1), 2 * _size(x)


def _avg_pool_backward(x: Tensor) -> Made:
    call = torch.ops.aten.avg_pool2d_backward
    return lambda: call(x, x, [3, 3], [1, 1], [1, 1], False, False, None), 3 * _size(x)


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────


def generic() -> Iterator[Convolution]:
    for kernel, stride, inner, outer in GENERIC:
        for pixels in _PIXELS:
            side = int(pixels**0.5) * stride
            yield Convolution(
                (1, inner, side, side),
                (outer, inner, kernel, kernel),
                (stride, stride),
                (1, 1),
                (kernel // 2, kernel // 2),
                1,
                False,
                (True, True, False),
                pixels,
            )


def convolutions(wanted: Iterable[Convolution]) -> dict[str, Curve]:
    points: dict[str, dict[float, float]] = {}
    for c in wanted:
        for what, took in _convolved(c):
            points.setdefault(signature(c, what), {})[float(c.pixels)] = took
    return {name: tuple(sorted(curve.items())) for name, curve in points.items()}


def _convolved(c: Convolution) -> Iterator[tuple[str, float]]:
    none = [0] * len(c.stride)
    rest = (c.stride, c.padding, c.dilation, c.transposed, none, c.groups)
    w = torch.rand(c.weight)
    size = _FLOAT * (prod(c.inputs) + c.weight[0] * c.pixels)
    inputs = [torch.rand(c.inputs) for _ in range(min(16, max(1, _CACHES // size)))]
    outputs = [torch.ops.aten.convolution(x, w, None, *rest) for x in inputs]
    forward = [partial(torch.ops.aten.convolution, x, w, None, *rest) for x in inputs]
    yield "forward", seconds(_in_turn(forward))
    for what, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
        backward = [
            partial(torch.ops.aten.convolution_backward, g, x, w, None, *rest, mask)
            for g, x in zip(outputs, inputs, strict=True)
        ]
        yield what, seconds(_in_turn(backward))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def fault() -> float:
    """Seconds for each byte that the system hands out: the first touch against the second."""
    size = 2**28
    first: list[float] = []
    again: list[float] = []
    for _ in range(3):
        fresh = torch.empty(size, dtype=torch.uint8)  # beyond what is kept: mapped anew
        for times in (first, again):
            started = time.perf_counter()
            fresh.fill_(1)
            times.append(time.perf_counter() - started)
        del fresh
    return max(0.0, statistics.median(first) - statistics.median(again)) / size
