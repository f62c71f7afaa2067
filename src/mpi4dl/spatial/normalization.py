"""Batch, group, instance, layer and local response normalisation with whole-image statistics."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..comm.communicator import Communicator
from ..comm.exchange import first_derivative_only, reduced
from .channel_norm import Seen, Statistics, channel_norm, running_moments
from .placement import Placement
from .reductions import is_cut, widened
from .regions import refuse_split_channels
from .registry import named, refuse, spatial_op
from .tile import Tile, alias, wrap


class _Normalize(torch.autograd.Function):
    """(x − mean) / √(variance + eps), the moments being those of all ranks together.

    Each rank computes its own mean and variance in two passes; they are combined pairwise exact
    (no E[x²] − E[x]²), so a large mean costs no digits. One small message each way.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dims: tuple[int, ...],
        counts: tuple[int, ...],
        comm: Communicator,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        if counts[comm.rank]:
            var, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
        else:
            shape = [1 if d in dims else n for d, n in zip(range(-x.ndim, 0), x.shape, strict=True)]
            var, mean = wide.new_zeros(shape), wide.new_zeros(shape)
        parts = comm.all_gather(torch.stack([mean, var]))
        total = sum(counts)
        weights = wide.new_tensor(counts).div_(total).view(-1, *[1] * x.ndim)
        means, variances = parts.unbind(1)
        mean = (weights * means).sum(0)
        var = (weights * (variances + (means - mean).square())).sum(0)
        scale = (var + eps).rsqrt()
        ctx.dims, ctx.total, ctx.comm = dims, total, comm
        ctx.save_for_backward(x, mean, scale)
        ctx.mark_non_differentiable(mean, var)
        return ((wide - mean) * scale).to(x.dtype), mean, var

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, mean, scale = ctx.saved_tensors
        grad_wide = grad.to(mean.dtype)
        normal = (x - mean) * scale
        sums = torch.stack(
            [grad_wide.sum(ctx.dims, True), (grad_wide * normal).sum(ctx.dims, True)]
        )
        both = reduced(sums, ctx.comm) / ctx.total
        result = scale * (grad_wide - both[0] - normal * both[1])
        return result.to(x.dtype), None, None, None, None


def _counts(placement: Placement, local: torch.Size, dims: tuple[int, ...]) -> tuple[int, ...]:
    """How many values each rank has for one statistic, known without asking."""
    plain = prod(local[d] for d in dims if d not in placement.factors)
    factors = [f for d in dims for f in placement.factors.get(d, ())]
    plain *= prod(f.extent for f in factors if f.axis < 0)
    axes = [f.axis for f in factors if f.axis >= 0]
    return tuple(plain * prod(box[a].size for a in axes) for box in placement.layout.boxes)


def _moments_mixed(x: Tile, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same by tile operators, for statistics that are cut themselves (batch and image cut)."""
    wide = widened(x)
    mean: Tensor = wide.mean(dims, keepdim=True)
    centred: Tensor = wide - mean
    var: Tensor = centred.square().mean(dims, keepdim=True)
    return centred * (var + eps).rsqrt(), mean.detach(), var.detach()


def standardized(x: Tile, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x normalised over `dims` of the whole image, with its mean and (biased) variance."""
    placement = x.placement
    if not set(placement.cut_dims) <= set(dims) or any(d in dims for d, _ in placement.joined):
        return _moments_mixed(x, dims, eps)
    local = alias(x)
    counts = _counts(placement, local.shape, dims)
    y, mean, var = _Normalize.apply(local, dims, counts, placement.comm, eps)
    return wrap(y, placement), mean, var


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.to(dtype)


def _check_affine(sizes: tuple[int, ...], *parameters: Tensor | None) -> None:
    """All have the shape of what they belong to; others would broadcast unnoticed."""
    for parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != sizes:
            shape = tuple(parameter.shape)
            raise RuntimeError(f"a weight, bias or statistic of {shape} for {sizes} of the input")


def _normalized(func: Any, x: Tile, normalized_shape: Any) -> tuple[int, ...]:
    """The sizes that the last dimensions must have."""
    _check_input(func, x, x.is_floating_point() or x.is_complex())
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    shape = tuple(x.global_shape)
    if not sizes or shape[-len(sizes) :] != sizes:
        raise RuntimeError(f"{func.__name__} over {sizes} of a tensor of {shape}")
    return sizes


def _per_channel(parameter: Tensor | None, ndim: int) -> Tensor | None:
    return None if parameter is None else parameter.view(1, -1, *[1] * (ndim - 2))


def _check_input(func: Any, x: Tensor, fine: bool) -> None:
    """What a rank without pixels would not notice, and the others would."""
    if not fine:
        raise NotImplementedError(f"{func.__name__} is not implemented for {x.dtype}")


def _check_channels(func: Any, x: Tile) -> None:
    local = alias(x)
    _check_input(func, local, local.is_floating_point())
    if 1 - local.ndim in x.placement.cut_dims:
        refuse_split_channels(func)


@spatial_op(F.batch_norm)
def batch_norm(
    func: Any,
    input: Tile,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    local, placement = alias(input), input.placement
    _check_channels(func, input)
    _check_affine((local.shape[1],), weight, bias, running_mean, running_var)
    if not training and (running_mean is None or running_var is None):
        raise RuntimeError("running_mean and running_var must be defined in evaluation mode")
    if not training or not placement.is_cut or not placement.global_numel(local.shape):
        local = F.batch_norm(
            local, running_mean, running_var, weight, bias, training, momentum, eps
        )
        return wrap(local, placement)
    over = _over_batch(placement, local.shape, eps)
    if over.total <= 1:
        got = input.global_shape
        raise ValueError(f"expected more than 1 value per channel when training, got {got}")
    seen = running_moments(running_mean, running_var, momentum, over.total)
    return wrap(channel_norm(local, weight, bias, over, owned_part(input), seen), placement)


@lru_cache(maxsize=4096)
def _over_batch(placement: Placement, shape: torch.Size, eps: float) -> Statistics:
    """Each channel by itself, over all images and pixels."""
    dims = tuple(d for d in range(-len(shape), 0) if d != 1 - len(shape))
    return Statistics(_counts(placement, shape, dims), 1, eps, placement.comm)


@spatial_op(torch.batch_norm)
def compiled_batch_norm(
    func: Any,
    input: Tile,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *options: Any,
    **named_options: Any,
) -> Tensor:
    """The function beneath F.batch_norm has its operands in another order."""
    return batch_norm(
        func, input, running_mean, running_var, weight, bias, *options, **named_options
    )


def owned_part(input: Tile) -> tuple[slice, ...] | None:
    """Where in the local tensor the own pixels are, if it has a margin beyond them."""
    return None if input.margin is None else input.margin.own_part(input)


@lru_cache(maxsize=4096)
def _over_image(placement: Placement, shape: torch.Size, channels: int, eps: float) -> Statistics:
    counts = _counts(placement, shape, tuple(range(2 - len(shape), 0)))
    return Statistics(counts, channels, eps, placement.comm)


def _per_sample(
    input: Tile,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    seen: Seen | None = None,
) -> Tensor:
    """Groups of channels of each image by themselves: a batch norm of N·C channels."""
    local, placement = alias(input), input.placement
    n, c = local.shape[:2]
    over = _over_image(placement, local.shape, c // groups, eps)
    slope, shift = (None if p is None else p.repeat(n) for p in (weight, bias))
    merged = local.reshape(1, n * c, *local.shape[2:])
    return wrap(channel_norm(merged, slope, shift, over, None, seen).view(local.shape), placement)


def _mixed(
    input: Tile, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """The same where batch and image are both cut: the statistics are cut themselves."""
    n, c = input.ndim, input.shape[1]
    # (N, G, C/G, …): the image dimensions keep their negative numbers; the batch moves by one.
    local = alias(input).unflatten(1, (groups, c // groups))
    grouped = wrap(alias(local), input.placement.moved({-n: -n - 1}))
    y = standardized(grouped, tuple(range(1 - n, 0)), eps)[0]
    y = wrap(alias(alias(y).flatten(1, 2)), input.placement)
    return _affine(y, _per_channel(weight, n), _per_channel(bias, n), input.dtype)


@spatial_op(F.instance_norm)
def instance_norm(
    func: Any,
    input: Tile,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    _check_channels(func, input)
    if not use_input_stats:
        return batch_norm(func, input, running_mean, running_var, weight, bias, eps=eps)
    n, shape = input.ndim, input.global_shape
    _check_affine((shape[1],), weight, bias, running_mean, running_var)
    dims = tuple(range(2 - n, 0))
    count = prod(shape[d] for d in dims)
    if count <= 1:
        raise ValueError(f"expected more than 1 spatial element when training, got {shape}")
    batch_cut = -n in input.placement.cut_dims
    if running_mean is not None and batch_cut:
        refuse(
            func,
            "its running statistics are averages over a batch that is split over ranks",
            "Split image dimensions only, or use track_running_stats=False",
        )
    if batch_cut:
        return group_norm(func, input, shape[1], weight, bias, eps)
    moments: list[Tensor] = []
    y = _per_sample(input, shape[1], weight, bias, eps, lambda *found: moments.extend(found))
    # PyTorch moves them here, after what a checkpoint may see, and in batch norm before it.
    running_moments(running_mean, running_var, momentum, count, shape[0])(*moments)
    return y


@spatial_op(torch.instance_norm)
def compiled_instance_norm(
    func: Any,
    input: Tile,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *options: Any,
    **named_options: Any,
) -> Tensor:
    """The function beneath F.instance_norm has its operands in another order."""
    return instance_norm(
        func, input, running_mean, running_var, weight, bias, *options, **named_options
    )


@spatial_op(F.group_norm, torch.group_norm)
def group_norm(
    func: Any,
    input: Tile,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    _check_channels(func, input)
    n, shape = input.ndim, input.global_shape
    if shape[1] % num_groups:
        raise ValueError(f"{shape[1]} channels cannot form {num_groups} groups")
    _check_affine((shape[1],), weight, bias)
    dims = tuple(range(2 - n, 0))
    if not is_cut(input, dims) or not input.numel():
        local = alias(input)
        if not local.requires_grad:
            # PyTorch's backward for the weights alone crashes where that is in channels_last.
            local = local.contiguous()
        return wrap(F.group_norm(local, num_groups, weight, bias, eps), input.placement)
    if -n in input.placement.cut_dims:
        return _mixed(input, num_groups, weight, bias, eps)
    return _per_sample(input, num_groups, weight, bias, eps)


@spatial_op(F.layer_norm, torch.layer_norm)
def layer_norm(
    func: Any,
    input: Tile,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    sizes = _normalized(func, input, normalized_shape)
    dims = tuple(range(-len(sizes), 0))
    _check_affine(sizes, weight, bias)
    if not is_cut(input, dims):
        return wrap(F.layer_norm(alias(input), sizes, weight, bias, eps), input.placement)
    y = standardized(input, dims, eps)[0]
    return _affine(y, weight, bias, input.dtype)


@spatial_op(*named("rms_norm"))
def rms_norm(
    func: Any,
    input: Tile,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    sizes = _normalized(func, input, normalized_shape)
    dims = tuple(range(-len(sizes), 0))
    _check_affine(sizes, weight)
    if not is_cut(input, dims):
        return wrap(F.rms_norm(alias(input), sizes, weight, eps), input.placement)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    x = widened(input)
    scale: Tensor = (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    return _affine(x * scale, weight, None, input.dtype)


@spatial_op(F.local_response_norm)
def local_response_norm(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Tensor:
    """Looks along the channels only."""
    if 1 - input.ndim in input.placement.cut_dims:
        refuse_split_channels(func)
    local = alias(input)
    out = func(local, *args, **kwargs)
    if not local.numel():
        # The dtype is that of the other ranks, which autocast may have changed.
        one = local.new_zeros([max(n, 1) for n in local.shape])
        out = out.to(func(one, *args, **kwargs).dtype)
    return wrap(alias(out), input.placement)


_sync_forward = nn.SyncBatchNorm.forward


def _sync_batch_norm_forward(self: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    """On a tile SyncBatchNorm is what every BatchNorm is there: statistics of all ranks.

    PyTorch's own forward refuses CPU tensors before any function is called that could be
    intercepted, which is why the method itself is wrapped.
    """
    if not isinstance(input, Tile):
        return _sync_forward(self, input)
    if self.process_group is not None and self.process_group.size() != input.placement.comm.size:
        refuse(
            F.batch_norm,
            f"SyncBatchNorm is set to {self.process_group.size()} ranks and the tile lies on "
            f"{input.placement.comm.size}",
            "Leave its process_group unset, or give both the same ranks",
        )
    return nn.modules.batchnorm._BatchNorm.forward(self, input)


nn.SyncBatchNorm.forward = _sync_batch_norm_forward  # type: ignore[method-assign]
