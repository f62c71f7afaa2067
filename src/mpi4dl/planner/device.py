"""What a processor can do: measured on this machine, or as its maker says.

A *measured* device has curves: for each kind of operator, seconds for so many bytes, and for each
kind of convolution, seconds for so many pixels. What is not on a curve, and everything on a device
that nobody has measured, is a roofline: the longer of arithmetic and memory traffic.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import exp, log, prod
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .recorder import Convolution, Operator

Curve = tuple[tuple[float, float], ...]
"""(size, seconds), sizes rising."""

GIB = 2**30


@dataclass(frozen=True)
class Device:
    name: str
    kind: str
    """`cpu` or `cuda`."""
    memory: int
    """Bytes of each rank."""
    flops: float
    """A second, at the peak of float32 (on GPUs: of TF32 where convolutions use it)."""
    bandwidth: float
    """Bytes a second, of its memory."""
    launch: float
    """Seconds of an operator that does nothing."""
    convolution: float = 0.5
    """Part of the peak that convolutions and matrix products reach, if they are large."""
    streaming: float = 0.8
    """Part of the bandwidth that all else reaches."""
    runtime: int = 0
    """Bytes of the program itself: libraries, compiled kernels, handles."""
    workspace: int = 0
    """Bytes that the library of kernels may use beside tensors."""
    among_others: float = 1.0
    """How much longer an operator takes in a network than by itself."""
    fault: float = 0.0
    """Seconds for each byte that the system has to hand out first."""
    python: float = 0.0
    """Seconds for each operator, beside the operator itself."""
    tile_python: float = 0.0
    """The same for tiles."""
    step: float = 0.0
    """Seconds of a step beside all else."""
    curves: Mapping[str, Curve] = field(default_factory=dict, repr=False)
    about: str = ""

    def __hash__(self) -> int:
        return id(self)

    def seconds(self, operator: Operator) -> float:
        """Of one call."""
        found = self._cache.get(operator)
        if found is None:
            found = self._cache[operator] = self.among_others * self._seconds(operator)
        return found

    def moved(self, size: float) -> float:
        """Seconds to read and write so many bytes, once."""
        curve = self.curves.get("copy_")
        return on(curve, size) if curve else size / (self.bandwidth * self.streaming)

    @cached_property
    def _cache(self) -> dict[Operator, float]:
        return {}

    def _seconds(self, operator: Operator) -> float:
        c = operator.convolution
        if c is not None:
            if not self._convolutions:
                return self._roofline(operator, self.convolution)
            if operator.name == "convolution":
                return self._convolved(c, "forward", operator)
            kinds = ("input", "weight")
            return sum(
                self._convolved(c, kind, operator)
                for kind, wanted in zip(kinds, c.wants, strict=False)
                if wanted
            )
        curve = self.curves.get(curve_of(operator.name))
        if curve is None or operator.name in ("mm", "addmm", "bmm"):
            return self._roofline(operator, self.convolution)
        return on(curve, operator.bytes)

    def _roofline(self, operator: Operator, efficiency: float) -> float:
        arithmetic = operator.flops / (self.flops * efficiency)
        return self.launch + max(arithmetic, operator.bytes / (self.bandwidth * self.streaming))

    @cached_property
    def _convolutions(self) -> dict[str, Curve]:
        return {name: curve for name, curve in self.curves.items() if name.startswith("conv ")}

    def _convolved(self, c: Convolution, what: str, operator: Operator) -> float:
        own = self._convolutions.get(signature(c, what))
        if own is not None:
            return on(own, c.pixels)
        return self._like_others(c, what, operator)

    def _like_others(self, c: Convolution, what: str, operator: Operator) -> float:
        """At the rate of the convolutions that are most like it."""
        near = sorted((distance(signature(c, what), name), name) for name in self._convolutions)
        if not near or near[0][0] == float("inf"):
            return self._roofline(operator, self.convolution)
        rates, weights = 0.0, 0.0
        for apart, name in near[:2]:
            if apart == float("inf"):
                continue
            weight = 1 / (0.1 + apart)
            rates += weight * log(on(self._convolutions[name], c.pixels) / work(name))
            weights += weight
        return exp(rates / weights) * work(signature(c, what))


def signature(c: Convolution, what: str) -> str:
    """A convolution without its image: `conv forward 3x3/1 g1 64>128`."""
    kernel = "x".join(map(str, c.weight[2:]))
    inner, outer = c.weight[1] * c.groups, c.weight[0]
    if c.transposed:
        inner, outer, kernel = c.weight[0], c.weight[1] * c.groups, f"T{kernel}"
    stride = "x".join(map(str, dict.fromkeys(c.stride)))
    dilated = "d" + "x".join(map(str, c.dilation)) if max(c.dilation, default=1) > 1 else ""
    return f"conv {what} {kernel}/{stride}{dilated} g{c.groups} {inner}>{outer}"


def _parts(name: str) -> tuple[str, str, str, int, int]:
    _, what, kernel, groups, channels = name.split()
    inner, outer = channels.split(">")
    return what, kernel, groups, int(inner), int(outer)


def work(name: str) -> float:
    """Multiplications for each output pixel."""
    _, kernel, groups, inner, outer = _parts(name)
    sizes = kernel.partition("/")[0].removeprefix("T").split("x")
    return prod(map(int, sizes)) * inner * outer / int(groups[1:])


def distance(a: str, b: str) -> float:
    """How unlike two convolutions are; infinite, if one says nothing about the other."""
    one, other = _parts(a), _parts(b)
    if one[0] != other[0] or (one[2] == "g1") != (other[2] == "g1"):
        return float("inf")
    kernels = abs(log(work(a) / (one[3] * one[4])) - log(work(b) / (other[3] * other[4])))
    strides = 0.5 * (one[1].partition("/")[2] != other[1].partition("/")[2])
    channels = sum(abs(log(x / y)) for x, y in zip(one[3:], other[3:], strict=True))
    return kernels + strides + channels


_LIKE = {
    "relu": "relu",
    "relu_": "relu_",
    "add": "add",
    "threshold_backward": "threshold_backward",
    "native_batch_norm": "native_batch_norm",
    "native_batch_norm_backward": "native_batch_norm_backward",
    "max_pool2d_with_indices": "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward": "max_pool2d_with_indices_backward",
    "avg_pool2d": "avg_pool2d",
    "avg_pool2d_backward": "avg_pool2d_backward",
    "copy_": "copy_",
    "clone": "copy_",
    "cat": "copy_",
    "constant_pad_nd": "copy_",
    "slice_backward": "copy_",
    "add_": "add_",
    "addcmul_": "add_",
    "mul_": "add_",
    "fill_": "fill_",
    "zero_": "fill_",
    "new_zeros": "fill_",
    "zeros": "fill_",
}


def curve_of(name: str) -> str:
    """On which curve an operator is."""
    return _LIKE.get(name, "add")


def on(curve: Curve, size: float) -> float:
    """Seconds at a size: on straight lines between the points, in logarithms; further out at the
    rate of the last point, and no less than the first."""
    sizes = [point[0] for point in curve]
    if size <= sizes[0]:
        return curve[0][1]
    if size >= sizes[-1]:
        return curve[-1][1] * size / sizes[-1]
    right = bisect_left(sizes, size)
    (a, s), (b, t) = curve[right - 1], curve[right]
    share = (log(size) - log(a)) / (log(b) - log(a))
    return exp(log(s) + share * (log(t) - log(s)))


# ── those that everybody has ─────────────────────────────────────────────────────────────────────

_CUDA = {"kind": "cuda", "launch": 8e-6, "runtime": 700 * 2**20, "workspace": 256 * 2**20}


def _gpu(name: str, memory: int, tflops: float, terabytes: float) -> Device:
    return Device(
        name,
        memory=memory * 10**9,
        flops=tflops * 1e12,
        bandwidth=terabytes * 1e12,
        step=2e-3,
        about="published peaks; efficiencies are assumed",
        **_CUDA,  # type: ignore[arg-type]
    )


DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        _gpu("v100-16gb", 16, 15.7, 0.9),
        _gpu("v100-32gb", 32, 15.7, 0.9),
        _gpu("a100-40gb", 40, 156, 1.555),
        _gpu("a100-80gb", 80, 156, 2.039),
        _gpu("h100-80gb", 80, 494.7, 3.35),
        _gpu("h200-141gb", 141, 494.7, 4.8),
    )
}
"""Peaks without sparsity, of the makers' data sheets; float32 means TF32 where there is one."""


def device(text: str) -> Device:
    """By name, or from a file that `mpi4dl calibrate` has written."""
    if text in DEVICES:
        return DEVICES[text]
    if not Path(text).is_file():
        raise UsageError(
            f"the device {text!r} is neither a file nor one of {', '.join(DEVICES)}: "
            "`mpi4dl calibrate` writes a file for this machine"
        )
    return load(text)


def load(path: str | Path) -> Device:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        data = {f.name: data[f.name] for f in fields(Device) if f.name in data}
        data["curves"] = {
            name: tuple((size, seconds) for size, seconds in curve)
            for name, curve in data["curves"].items()
        }
        return Device(**data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no device file ({error}): make one with mpi4dl calibrate"
        ) from error


def save(described: Device, path: str | Path, more: Mapping[str, Any] | None = None) -> None:
    data = {**asdict(described), **(more or {})}
    Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def bytes_of(text: str) -> int:
    """`80GB`, `16GiB`, `500MB`, or a number of bytes."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {f"{k}IB": 2 ** (10 * (i + 1)) for i, k in enumerate("KMGT")}
    number = text.strip().rstrip("BbIiKkMmGgTt ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = float(number) * units[unit]
    except (ValueError, KeyError):
        raise UsageError(f"{text!r} is no amount of memory: write 80GB, 16GiB or 500MB") from None
    if size <= 0:
        raise UsageError(f"{text!r} is no amount of memory: it must be more than nothing")
    return int(size)


__all__: Sequence[str] = ("DEVICES", "Curve", "Device", "bytes_of", "device", "load", "on", "save")
