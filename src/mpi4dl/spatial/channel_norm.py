"""Normalising channels by the moments of the whole image, at the cost of PyTorch's own kernels.

    forward    one pass for the own moments, a small message, one pass for the output
    backward   one pass for the sums, a small message, two for the gradient

Only the input is kept for backward, as in one process. Moments are found in two passes and
combined exactly (no E[x²] − E[x]²), so a large mean costs no digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from ..comm.communicator import Communicator
from ..comm.exchange import first_derivative_only

_HALF = (torch.bfloat16, torch.float16)
_PIECE = 2**19  # bytes
Seen = Callable[[Tensor, Tensor], None]  # gets the mean and the biased variance


@dataclass(frozen=True)
class Statistics:
    """What the moments are taken over."""

    counts: tuple[int, ...]  # cells of one channel that each rank has
    channels: int  # that share their moments: 1, or those of a group
    eps: float
    comm: Communicator

    @cached_property
    def total(self) -> int:
        return sum(self.counts) * self.channels


@lru_cache(maxsize=1024)
def _shares_of(counts: tuple[int, ...], like: tuple[torch.dtype, torch.device]) -> Tensor | None:
    """What part of all cells each rank has; None if all have as many."""
    if len(set(counts)) == 1:
        return None
    cells = sum(counts)
    dtype, device = like
    # A tensor of inference mode could not take part in training afterwards.
    with torch.inference_mode(False):
        shares = torch.tensor([n / cells for n in counts], dtype=dtype, device=device)
    return shares.view(-1, 1, 1)


class _ChannelNorm(torch.autograd.Function):
    """x is (B, K, …). Each channel's cells are those of all B and of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        over: Statistics,
        owned: tuple[slice, ...] | None,
        seen: Seen | None,
    ) -> Tensor:
        kind = torch.float32 if x.dtype in _HALF else x.dtype
        own = x if owned is None else x[owned]
        mean, var = _combined(*_own_moments(own.to(kind), over), over)
        if seen is not None:
            # Here, as in PyTorch's kernel: a checkpoint's second run ends where tensors are saved.
            seen(mean, var)
        mean_of, var_of = _of_channels(mean, over), _of_channels(var, over)
        slope, shift = (None if p is None else p.to(kind) for p in (weight, bias))
        out = torch.native_batch_norm(x, slope, shift, mean_of, var_of, False, 0.0, over.eps)[0]
        ctx.save_for_backward(x, weight, mean_of, var_of)
        ctx.over, ctx.owned = over, owned
        ctx.bias_kind = None if bias is None else bias.dtype
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        over: Statistics = ctx.over
        kind = mean.dtype
        wide, grad_wide = _with_regular_strides(x.to(kind)), _with_regular_strides(grad.to(kind))
        straight, along = _sums(grad_wide, wide, mean, var, over.eps)
        of_weight = None if weight is None else along.to(weight.dtype)
        of_bias = None if ctx.bias_kind is None else straight.to(ctx.bias_kind)
        if not ctx.needs_input_grad[0]:
            # The others reduce all the same: whether the input wants a gradient is alike on all.
            return None, of_weight, of_bias, None, None, None
        slope = None if weight is None else weight.to(kind)
        scale = (var + over.eps).rsqrt_()
        by_moments = _shares(straight, along, slope, over).mul_(scale)
        factor = scale if slope is None else scale.mul_(slope)
        factor = factor.view(1, -1, *[1] * (x.ndim - 2))
        # What the moments pass back is affine in the normalised input: one pass, by one kernel.
        result = _normalized(wide, by_moments, mean, var, over.eps)
        if ctx.owned is not None:  # a margin is normalised too, but the moments do not depend on it
            for around in _outside(ctx.owned, x.shape):
                result[around] = 0
        result.addcmul_(grad_wide, factor)
        return result.to(x.dtype), of_weight, of_bias, None, None, None


def _sums(grad: Tensor, x: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Over the cells of each channel: of the gradient, and of gradient · normalised input."""
    if x.is_cuda:
        scale = (var + eps).rsqrt()
        straight, along, _, _ = torch.batch_norm_backward_reduce(
            grad, x, mean, scale, None, True, False, False
        )
        return straight, along * scale
    _, along, straight = torch.ops.aten.native_batch_norm_backward(
        grad, x, None, mean, var, None, None, False, eps, [False, True, True]
    )
    return straight, along


def _outside(owned: tuple[slice, ...], shape: torch.Size) -> list[tuple[slice, ...]]:
    """What lies around a part of a tensor, side by side; corners twice."""
    found = []
    for dim, (part, n) in enumerate(zip(owned, shape, strict=True)):
        start, stop, _ = part.indices(n)
        sides = (slice(0, start), slice(stop, n))
        found += [(*[slice(None)] * dim, side) for side in sides if side.start < side.stop]
    return found


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _with_regular_strides(x: Tensor) -> Tensor:
    """The same memory; dimensions of size 1 get the strides of a tensor that was just made.

    PyTorch's kernel reads a memory format off the strides. Where those of a dimension of size 1
    are others (`x[0].unsqueeze(0)` of an image in channels_last), it takes x and the gradient for
    differently ordered than they are, and its sums are wrong.
    """
    if 1 not in x.shape or x.is_contiguous():
        return x
    memory = _FORMATS.get(x.ndim)
    if memory is None or not x.is_contiguous(memory_format=memory):
        return x
    return x.as_strided(x.shape, torch.empty_like(x, device="meta", memory_format=memory).stride())


def _shares(straight: Tensor, along: Tensor, slope: Tensor | None, over: Statistics) -> Tensor:
    """Minus the means over all cells of slope · gradient, alone and · normalised input."""
    sums = torch.stack([straight, along])
    if slope is not None:  # the same on every rank
        sums.mul_(slope)
    if over.channels > 1:
        sums = sums.view(2, -1, over.channels).sum(2)
    over.comm.all_reduce(sums)
    sums.div_(-over.total)
    return sums if over.channels == 1 else sums.repeat_interleave(over.channels, 1)


def _normalized(x: Tensor, affine: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    shift, slope = affine.unbind()
    return torch.native_batch_norm(x, slope, shift, mean, var, False, 0.0, eps)[0]


def _of_channels(moment: Tensor, over: Statistics) -> Tensor:
    return moment if over.channels == 1 else moment.repeat_interleave(over.channels)


def _own_moments(x: Tensor, over: Statistics) -> tuple[Tensor, Tensor]:
    if over.counts[over.comm.rank] == 0 or x.is_meta:  # PyTorch has no meta kernel for it
        return x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
    if x.is_cpu and x.ndim > 2 and x.stride(1) > x.stride(-1):
        return moments_by_pieces(x)
    mean, var = torch.batch_norm_update_stats(x, None, None, 0.0)
    return mean, var


def moments_by_pieces(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same, some channels at a time, whose deviations from the mean stay in the cache.

    PyTorch's kernel for such memory on CPUs adds up one number after the other, and takes three
    times as long. Rows are added up in the dtype of x, and the rows in float64, as there.
    """
    channels, dims = x.shape[1], [d for d in range(x.ndim) if d != 1]
    cells = x.numel() // channels
    most = max(1, _PIECE // (cells * x.element_size()))
    means, squares = [], []
    for piece in x.split(most, 1):
        rows = piece.sum(-1, keepdim=True).sum(dims[:-1], keepdim=True, dtype=torch.float64)
        mean = rows.div_(cells).to(x.dtype)
        means.append(mean)
        squares.append((piece - mean).square_().mean(dims, keepdim=True))
    return torch.cat(means, 1).view(channels), torch.cat(squares, 1).view(channels)


def _combined(mean: Tensor, var: Tensor, over: Statistics) -> tuple[Tensor, Tensor]:
    """Moments of a group of channels over all ranks, from those of each channel on each rank."""
    if over.channels > 1:
        mean, var = _pooled(torch.stack([mean, var]).view(2, -1, over.channels).permute(2, 0, 1))
    if over.comm.size == 1:
        return mean, var
    parts = over.comm.all_gather(torch.stack([mean, var]))
    return _pooled(parts, _shares_of(over.counts, (parts.dtype, parts.device)))


def _pooled(parts: Tensor, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Moments of a union of samples from theirs: (samples, mean and variance, channels).

    `shares` are those of the samples in the whole: equal ones, if None.
    """
    both = parts.mean(0) if shares is None else (parts * shares).sum(0)
    mean, var = both.unbind()
    between = parts[:, 0].sub(mean).square_()
    var += between.mean(0) if shares is None else between.mul_(shares[:, 0]).sum(0)
    return mean, var


def running_moments(
    means: Tensor | None, variances: Tensor | None, momentum: float, count: int, images: int = 1
) -> Seen:
    """Moves running statistics towards those of `count` values, averaged over the images."""

    def update(running: Tensor | None, value: Tensor) -> None:
        if running is not None:
            mean = value if images == 1 else value.view(images, -1).mean(0)
            running.lerp_(mean.to(running.dtype), momentum)

    def seen(mean: Tensor, var: Tensor) -> None:
        update(means, mean)
        update(variances, var * (count / (count - 1)))

    return seen


def channel_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    over: Statistics,
    owned: tuple[slice, ...] | None = None,
    seen: Seen | None = None,
) -> Tensor:
    """x normalised. `seen` is told the moments, one mean and one variance for each group.

    `owned` is the part of x that counts for the moments, if x has a margin beyond it.
    """
    if x.shape[0] == 0:
        # PyTorch's kernel for the backward divides by the size of the batch, and crashes.
        flat = x.reshape(1, x.shape[1], 0)
        out: Tensor = _ChannelNorm.apply(flat, weight, bias, over, None, seen)
        return out.reshape(x.shape)
    return _ChannelNorm.apply(x, weight, bias, over, owned, seen)
