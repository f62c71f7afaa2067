"""Memory that kernels need beside their operands and results.

oneDNN, which computes most convolutions on CPUs, wants its images in blocks of 16 channels: it
copies what comes and what goes. Seen with ONEDNN_VERBOSE=1 (PyTorch 2.13, AVX-512):

    forward              input ─▶ blocked ─▶ convolve ─▶ blocked ─▶ output
    gradient of input    gradient ─▶ blocked ─▶ convolve ─▶ blocked ─▶ gradient
    gradient of weight   input and gradient ─▶ blocked ─▶ convolve

An input of few channels is read as it is. A 1×1 convolution of a small batch by one thread is a
matrix product, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .recorder import Convolution, Operator

_BLOCK = 16
_PLAIN = 4  # channels up to which oneDNN reads an image as it is
_FLOAT = 4


def cpu_workspace(operator: Operator) -> Sequence[int]:
    """With float32 and one thread a rank."""
    c = operator.convolution
    if c is None or not _by_onednn(c):
        return ()
    channels = c.inputs[1]
    x = 0 if channels <= _PLAIN else _blocked(channels, c.inputs[0] * prod(c.inputs[2:]))
    y = _blocked(c.weight[1] * c.groups if c.transposed else c.weight[0], c.pixels)
    if operator.name == "convolution":
        return (x + y,)
    gradient_of_input = _blocked(channels, c.inputs[0] * prod(c.inputs[2:])) + y
    each = (gradient_of_input, x + y, 0)
    return tuple(size for size, wanted in zip(each, c.wants, strict=True) if wanted)


def _blocked(channels: int, cells: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK * cells * _FLOAT


def _by_onednn(c: Convolution) -> bool:
    """PyTorch's own choice (`use_mkldnn`), with one thread."""
    square = min(c.weight[-2:]) > 3 if len(c.weight) > 3 else c.weight[-1] > 3
    worth = c.groups > 1 or square or c.inputs[0] > 1 or prod(c.inputs) > 20480
    sliding = any(n > 1 for n in (*c.stride, *c.dilation, *c.weight[2:]))
    return worth and (sliding or c.inputs[0] >= 16)
