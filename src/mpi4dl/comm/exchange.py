"""Transfers and reductions as autograd functions, each with its true adjoint as backward.

The P ranks are read as one program with P losses: backward differentiates their sum. So the
adjoint of an all-reduce is an all-reduce, of a copy to several ranks a sum over them, and no
operator above has to know who holds copies of what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedOperator
from ..geometry import Box, Transfer
from .communicator import Communicator, ReduceOp

Index = tuple[slice, ...]


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that refuses create_graph=True, where a gradient is to be differentiated again.

    That gradient is one of P losses, so what is computed from it would be P times, or P² times,
    what one process has. Backward runs with gradients enabled only if it is to be recorded.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedOperator(
                "create_graph=True: gradients that passed between ranks cannot be differentiated "
                "again. Compute a gradient penalty on .full_tensor(), without tiles"
            )
        return backward(ctx, *gradients)

    return checked


_wanted: ContextVar[Callable[[Any, int], bool] | None] = ContextVar(
    "mpi4dl_backward_wants", default=None
)


@contextmanager
def backward_wants(edge: Callable[[Any, int], bool]) -> Iterator[None]:
    """Inside, a backward computes only some gradients: those of input i of node n if `edge(n, i)`.

    PyTorch's own kernels are told what is wanted of them. Autograd functions written in Python
    are not, and ask `wants`; where a GPU's backward runs in a thread of its own, it is everything.
    """
    token = _wanted.set(edge)
    try:
        yield
    finally:
        _wanted.reset(token)


def wants(ctx: Any, index: int) -> bool:
    """Whether the backward under way wants the gradient of a function's tensor input `index`."""
    edge = _wanted.get()
    return bool(ctx.needs_input_grad[index]) and (edge is None or edge(ctx, index))


@dataclass(frozen=True)
class RankPlan:
    """One rank's part of a transfer, as slices of its tensors. `sends[i]` is (peer, where)."""

    own: tuple[int, ...]
    wanted: tuple[int, ...]
    sends: tuple[tuple[int, Index], ...]
    receives: tuple[tuple[int, Index], ...]
    keep: tuple[Index, Index] | None
    covered: bool  # nothing of the wanted box lies outside the image


@lru_cache(maxsize=16384)
def rank_plan(transfer: Transfer, rank: int, dims: tuple[int, ...], ndim: int) -> RankPlan:
    """`dims[axis]` is the (negative) tensor dimension of a layout axis."""
    own, wanted = transfer.layout.boxes[rank], transfer.targets[rank]

    def index(box: Box, outer: Box) -> Index:
        full = [slice(None)] * ndim
        for dim, part in zip(dims, box.slices_in(outer), strict=True):
            full[dim] = part
        return tuple(full)

    outgoing, incoming = list(transfer.outgoing(rank)), list(transfer.incoming(rank))
    kept = [m.box for m in incoming if m.source == rank]
    return RankPlan(
        own=own.shape,
        wanted=wanted.shape,
        sends=tuple((m.target, index(m.box, own)) for m in outgoing if m.target != rank),
        receives=tuple((m.source, index(m.box, wanted)) for m in incoming if m.source != rank),
        keep=(index(kept[0], own), index(kept[0], wanted)) if kept else None,
        covered=sum(m.box.volume for m in incoming) == wanted.volume,
    )


def empty_region(like: Tensor, dims: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """An uninitialised tensor as `like`, memory format included, with other sizes in `dims`."""
    shape = list(like.shape)
    for dim, n in zip(dims, sizes, strict=True):
        shape[dim] = n
    if like.is_contiguous():  # and perhaps channels_last as well, with one channel or one pixel
        return like.new_empty(shape)
    memory = torch.contiguous_format
    if like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last):
        memory = torch.channels_last
    elif like.ndim == 5 and like.is_contiguous(memory_format=torch.channels_last_3d):
        memory = torch.channels_last_3d
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory)


class _TransferFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        local: Tensor,
        plan: RankPlan,
        dims: tuple[int, ...],
        comm: Communicator,
        fill: float,
    ) -> Tensor:
        ctx.plan, ctx.dims, ctx.comm = plan, dims, comm
        return _transferred(local, plan, dims, comm, fill)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        plan = ctx.plan
        result = empty_region(grad, ctx.dims, plan.own).zero_()
        arriving = [(peer, grad.new_empty(result[where].shape)) for peer, where in plan.sends]
        sends = [(peer, grad[where]) for peer, where in plan.receives]
        pending = ctx.comm.start(sends, arriving)
        if plan.keep is not None:
            source, target = plan.keep
            result[source] = grad[target]
        pending.wait()
        for (_, buffer), (_, where) in zip(arriving, plan.sends, strict=True):
            result[where] += buffer
        return result, None, None, None, None


def _transferred(
    local: Tensor, plan: RankPlan, dims: tuple[int, ...], comm: Communicator, fill: float
) -> Tensor:
    out = empty_region(local, dims, plan.wanted)
    if not plan.covered:
        out.fill_(fill)
    parts = [(peer, out[where]) for peer, where in plan.receives]
    # What lies in one piece is received in its place.
    arriving = [(peer, p if p.is_contiguous() else p.new_empty(p.shape)) for peer, p in parts]
    pending = comm.start([(peer, local[where]) for peer, where in plan.sends], arriving)
    if plan.keep is not None:
        source, target = plan.keep
        out[target] = local[source]
    pending.wait()
    for (_, part), (_, arrived) in zip(parts, arriving, strict=True):
        if arrived is not part:
            part.copy_(arrived)
    return out


def transfer(
    local: Tensor, moves: Transfer, dims: tuple[int, ...], comm: Communicator, fill: float = 0.0
) -> Tensor:
    """This rank's target box. Cells outside the image are `fill`."""
    plan = rank_plan(moves, comm.rank, dims, local.ndim)
    if moves.is_local and plan.covered:
        if plan.own == plan.wanted:
            return local
        if plan.keep is not None:
            return local[plan.keep[0]]
    if not (local.requires_grad and torch.is_grad_enabled()):  # spared the way through autograd
        return _transferred(local, plan, dims, comm, fill)
    return _TransferFunction.apply(local, plan, dims, comm, fill)


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        out = x.clone(memory_format=torch.contiguous_format)
        comm.all_reduce(out)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        ctx.comm.all_reduce(grad)
        return grad, None


def all_reduce_sum(x: Tensor, comm: Communicator) -> Tensor:
    """The sum over ranks, differentiable."""
    if comm.size == 1:
        return x
    return _AllReduceSum.apply(x, comm)


def reduced(x: Tensor, comm: Communicator, op: ReduceOp = "sum") -> Tensor:
    """A combined copy over ranks, without a gradient."""
    out = x.detach().clone(memory_format=torch.contiguous_format)
    comm.all_reduce(out, op)
    return out
