"""Pooling that works on its own tile while the halo is under way.

    forward    post the halo ─▶ pool the tile, padded like an image ─▶ wait ─▶ pool the sides
    backward   sides first ─▶ send their gradient home ─▶ the tile's gradient ─▶ wait, add

No padded copy of the tile is made in either direction. The outputs of the sides (`borders.py`)
are computed anew from small regions and take the place of what the tile alone gave: a maximum
cannot be put together from two halves as a convolution can. Backward of the tile alone must pass
over them (`without`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..comm.communicator import Communicator, Message
from ..comm.exchange import Index, first_derivative_only
from ..geometry import Interval, SlidingWindow, pool_size
from .borders import Borders, Side, Sizes

_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class MaxKernel:
    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    ceil_mode: bool

    fill = float("-inf")

    @property
    def options(self) -> tuple[Any, ...]:
        return (self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = len(self.kernel) == 2
        pool = _aten.max_pool2d_with_indices if flat else _aten.max_pool3d_with_indices
        values, indices = pool(x, *self.options)
        return values, indices

    def backward(self, grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        flat = len(self.kernel) == 2
        pool = _aten.max_pool2d_with_indices_backward
        pool = pool if flat else _aten.max_pool3d_with_indices_backward
        result: Tensor = pool(grad, x, *self.options, indices)
        return result

    def pass_over(self, indices: Tensor, outputs: Index) -> None:
        """PyTorch's kernels send nothing back where there is no index."""
        indices[outputs] = -1

    def without(self, grad: Tensor, around: Borders) -> Tensor:
        return grad

    def of_side(self, side: Side) -> MaxKernel:
        """The same over a region that holds every window whole."""
        return replace(self, padding=(0,) * len(self.kernel), ceil_mode=False)


@dataclass(frozen=True)
class AverageKernel:
    sizes: Sizes  # of the whole image
    kernel: Sizes
    stride: Sizes
    padding: Sizes
    ceil_mode: bool
    include_padding: bool
    divisor: int | None

    fill = 0.0

    @property
    def options(self) -> tuple[Any, ...]:
        return (
            *(self.kernel, self.stride, self.padding, self.ceil_mode),
            *(self.include_padding, self.divisor),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pool = _aten.avg_pool2d if len(self.kernel) == 2 else _aten.avg_pool3d
        out: Tensor = pool(x, *self.options)
        return out, x.new_empty(0)

    def backward(self, grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        flat = len(self.kernel) == 2
        pool = _aten.avg_pool2d_backward if flat else _aten.avg_pool3d_backward
        result: Tensor = pool(grad, x, *self.options)
        return result

    def pass_over(self, indices: Tensor, outputs: Index) -> None:
        return None

    def without(self, grad: Tensor, around: Borders) -> Tensor:
        """The gradient without that of the sides, which have had theirs."""
        if not around.sides:
            return grad
        grad = grad.clone()
        for side in around.sides:
            grad[side.outputs] = 0
        return grad

    def of_side(self, side: Side) -> AverageOfSide:
        return _average_of_side(self, side.cells)


@dataclass(frozen=True)
class AverageOfSide:
    """Sums over whole windows, divided by the number of cells that count in each."""

    kernel: Sizes
    stride: Sizes
    counts: tuple[tuple[int, ...], ...]  # their products are the divisors

    def _scaled(self, sums: Tensor) -> Tensor:
        for divisors in _divisors(self.counts, sums.dtype, sums.device):
            sums = sums / divisors
        return sums

    @property
    def options(self) -> tuple[Any, ...]:
        return (self.kernel, self.stride, [0] * len(self.kernel), False, True, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pool = _aten.avg_pool2d if len(self.kernel) == 2 else _aten.avg_pool3d
        wide = x.float() if x.dtype in _HALF else x  # sums in half precision overflow
        return self._scaled(pool(wide, *self.options)).to(x.dtype), x.new_empty(0)

    def backward(self, grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        flat = len(self.kernel) == 2
        pool = _aten.avg_pool2d_backward if flat else _aten.avg_pool3d_backward
        wide = grad.float() if grad.dtype in _HALF else grad
        result: Tensor = pool(self._scaled(wide), x.to(wide.dtype), *self.options)
        return result.to(grad.dtype)


@lru_cache(maxsize=4096)
def _divisors(
    counts: tuple[tuple[int, ...], ...], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """As tensors that broadcast, one for each of the last dimensions."""
    with torch.inference_mode(False):  # for training may come after it
        made = [torch.tensor(numbers, dtype=dtype, device=device) for numbers in counts]
    return [t.view(-1, *[1] * (len(made) - 1 - i)) for i, t in enumerate(made)]


def counted(
    n: int, kernel: int, stride: int, padding: int, outputs: range, include_padding: bool
) -> tuple[int, ...]:
    """By how many cells along a dimension each output is divided, in PyTorch's way of counting."""
    low, high = (-padding, n + padding) if include_padding else (0, n)
    starts = (o * stride - padding for o in outputs)
    return tuple(max(min(s + kernel, high) - max(s, low), 1) for s in starts)


@lru_cache(maxsize=4096)
def _average_of_side(
    whole: AverageKernel, cells: tuple[tuple[int, Interval], ...]
) -> AverageOfSide:
    counts: tuple[tuple[int, ...], ...] = ()
    for i, size in enumerate(whole.sizes):
        outputs = dict(cells)[i - len(whole.sizes)]
        where = range(outputs.start, outputs.stop)
        shape = (size, whole.kernel[i], whole.stride[i], whole.padding[i])
        counts += (counted(*shape, where, whole.include_padding),)
    if whole.divisor is not None:
        counts = ((whole.divisor,), *((1,) for _ in whole.sizes[1:]))
    return AverageOfSide(whole.kernel, whole.stride, counts)


PoolKernel = MaxKernel | AverageKernel


def rounded_down(cells: int, window: SlidingWindow) -> int:
    """Outputs of a tile of so many cells (`fits_tiles`)."""
    return _outputs(cells, window, False)


def rounded_up(cells: int, window: SlidingWindow) -> int:
    return _outputs(cells, window, True)


def _outputs(cells: int, w: SlidingWindow, ceil_mode: bool) -> int:
    return pool_size(cells, w.kernel, w.stride, w.padding, w.dilation, ceil_mode)


class _HaloPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tile: Tensor, kernel: PoolKernel, around: Borders, comm: Communicator
    ) -> Tensor:
        arriving = [(peer, _sized(tile, shape)) for peer, shape in around.receives]
        leaving = [(peer, tile[where]) for peer, where in around.sends]
        pending = comm.start(leaving, arriving)
        out, indices = kernel.forward(tile)
        pending.wait()
        saved = [tile, indices]
        for side in around.sides:
            region = _region(tile, side, arriving, kernel.fill)
            out[side.outputs], chosen = kernel.of_side(side).forward(region)
            kernel.pass_over(indices, side.outputs)
            saved += [region, chosen]
        ctx.save_for_backward(*saved)
        ctx.kernel, ctx.around, ctx.comm = kernel, around, comm
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        tile, indices, *saved = ctx.saved_tensors
        kernel, around = ctx.kernel, ctx.around
        going = [(peer, _sized(grad, shape).zero_()) for peer, shape in around.receives]
        mine: list[tuple[Any, Tensor]] = []
        for side, region, chosen in zip(around.sides, saved[::2], saved[1::2], strict=True):
            part = grad[side.outputs].contiguous()
            back = kernel.of_side(side).backward(part, region, chosen)
            for piece in side.pieces:
                if piece.message < 0:
                    mine.append((piece.there, back[piece.here]))
                else:
                    going[piece.message][1][piece.there] += back[piece.here]
        coming = [(peer, _sized_as(tile[where])) for peer, where in around.sends]
        pending = ctx.comm.start(going, coming)
        result = kernel.backward(kernel.without(grad, around), tile, indices)
        for where, part in mine:
            result[where] += part
        pending.wait()
        for (_, where), (_, part) in zip(around.sends, coming, strict=True):
            result[where] += part
        return result, None, None, None


def _sized(like: Tensor, sizes: tuple[tuple[int, int], ...]) -> Tensor:
    shape = list(like.shape)
    for dim, n in sizes:
        shape[dim] = n
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _sized_as(part: Tensor) -> Tensor:
    return torch.empty(part.shape, dtype=part.dtype, device=part.device)


def _region(tile: Tensor, side: Side, arrived: list[Message], fill: float) -> Tensor:
    region = _sized(tile, side.extent).fill_(fill)
    for piece in side.pieces:
        source = tile if piece.message < 0 else arrived[piece.message][1]
        region[piece.here] = source[piece.there]
    return region


def pool(tile: Tensor, kernel: PoolKernel, around: Borders, comm: Communicator) -> Tensor:
    """This rank's outputs of a pooling that fits its tiles (`borders.fits_tiles`)."""
    return _HaloPool.apply(tile, kernel, around, comm)
