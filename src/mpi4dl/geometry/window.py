"""Which inputs an output reads.

For each spatial operator and each axis a window answers two questions in plain integers:

* `reads(out)`: the input interval that the output interval needs. It may reach outside the
  image; what lies there is the operator's own padding.
* `cut(c)`: where the cut between two tiles goes. Input cut at `c` makes output cut at `cut(c)`;
  chosen so that an output belongs to the rank that holds the centre of its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import GeometryError
from .box import Interval


class Window(Protocol):
    @property
    def in_size(self) -> int: ...
    @property
    def out_size(self) -> int: ...
    def reads(self, out: Interval) -> Interval: ...
    def cut(self, c: int) -> int: ...
    def __hash__(self) -> int: ...


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Convolution and pooling: output o reads `o·stride − padding + j·dilation`, j < kernel."""

    in_size: int
    out_size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """From the first to the last input that one output reads."""
        return (self.kernel - 1) * self.dilation

    def reads(self, out: Interval) -> Interval:
        start = out.start * self.stride - self.padding
        if out.empty:
            return Interval(start, start)
        return Interval(start, (out.stop - 1) * self.stride - self.padding + self.reach + 1)

    def cut(self, c: int) -> int:
        return ceil_div(c + self.padding - self.reach // 2, self.stride)


@dataclass(frozen=True, slots=True)
class TransposedWindow:
    """Transposed convolution: input i writes `i·stride − padding + j·dilation`, j < kernel.

    `reads` is widened so that the inputs it names, transposed, cover the whole output interval
    even where the stride leaves outputs that nothing writes to.
    """

    in_size: int
    out_size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation

    def reads(self, out: Interval) -> Interval:
        first, last = out.start + self.padding, out.stop - 1 + self.padding
        start = min(ceil_div(first - self.reach, self.stride), first // self.stride)
        if out.empty:
            return Interval(start, start)
        return Interval(
            start, max(last // self.stride, ceil_div(last - self.reach, self.stride)) + 1
        )

    def writes_from(self, start: int) -> int:
        """The first output that the input `start` writes to."""
        return start * self.stride - self.padding

    def cut(self, c: int) -> int:
        return c * self.stride - self.padding + self.reach // 2


@dataclass(frozen=True, slots=True)
class WholeWindow:
    """An axis that is not cut: every rank holds all of it, and the kernel pads it by itself."""

    in_size: int
    out_size: int

    def reads(self, out: Interval) -> Interval:
        return Interval(0, self.in_size)

    def cut(self, c: int) -> int:
        raise GeometryError("an axis that is not cut has no cuts")


@dataclass(frozen=True, slots=True, eq=False)
class TableWindow:
    """Any operator whose output o reads `first[o] … last[o]`, both rising: resizing, mostly."""

    in_size: int
    out_size: int
    first: tuple[int, ...]
    last: tuple[int, ...]

    def reads(self, out: Interval) -> Interval:
        if out.empty:
            start = self.first[min(out.start, self.out_size - 1)]
            return Interval(start, start)
        return Interval(self.first[out.start], self.last[out.stop - 1] + 1)

    def cut(self, c: int) -> int:
        return ceil_div(c * self.out_size, self.in_size)


@dataclass(frozen=True, slots=True)
class ComposedWindow:
    """Several windows one after the other, the first operator first.

    Between two operators the interval is clipped to the image in between: what lies outside is
    the next operator's own padding, which nobody has to compute.
    """

    windows: tuple[Window, ...]

    def __post_init__(self) -> None:
        for before, after in zip(self.windows, self.windows[1:], strict=False):
            if before.out_size != after.in_size:
                raise GeometryError(
                    f"a window that makes {before.out_size} outputs cannot be followed by one "
                    f"that reads {after.in_size}"
                )

    @property
    def in_size(self) -> int:
        return self.windows[0].in_size

    @property
    def out_size(self) -> int:
        return self.windows[-1].out_size

    def reads(self, out: Interval) -> Interval:
        need = out
        for window in reversed(self.windows):
            need = window.reads(need.intersect(Interval(0, window.out_size)))
        return need

    def cut(self, c: int) -> int:
        """As `Layout.remap` by one window after the other: the ends stay ends, also in between."""
        for window in self.windows:
            if 0 < c < window.in_size:
                c = min(max(window.cut(c), 0), window.out_size)
            elif c != 0:
                c = window.out_size
        return c


# ── output sizes, by PyTorch's rules ─────────────────────────────────────────────────────────────


def conv_size(
    n: int, kernel: int, stride: int, padding: int | tuple[int, int], dilation: int
) -> int:
    """Outputs of a convolution; `padding` on both sides, or (before, after)."""
    before, after = padding if isinstance(padding, tuple) else (padding, padding)
    return (n + before + after - dilation * (kernel - 1) - 1) // stride + 1


def pool_size(
    n: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """Outputs of a pooling; with `ceil_mode` the last window must start inside image or padding."""
    span = n + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return span // stride + 1
    out = ceil_div(span, stride) + 1
    return out - 1 if (out - 1) * stride >= n + padding else out


def transposed_size(
    n: int, kernel: int, stride: int, padding: int, dilation: int, output_padding: int
) -> int:
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1


def check_output(what: str, sizes: Sequence[int], out: Sequence[int]) -> None:
    """An operator that leaves no output is an error on every rank, as it is in one process."""
    if any(o < 1 for o in out):
        raise GeometryError(
            f"{what} on an image of {tuple(sizes)} would leave {tuple(out)} outputs: "
            "the kernel is larger than the padded image"
        )
