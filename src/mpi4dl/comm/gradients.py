"""From every rank's share of the gradients to the exact ones."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..errors import LayoutMismatch
from .communicator import Communicator
from .launch import communicator

_BUCKET_BYTES = 25 * 2**20
_checked: WeakSet[nn.Module] = WeakSet()


def sync_gradients(model: nn.Module, comm: Communicator | None = None) -> None:
    """Replace each parameter's gradient by its mean over ranks, which is the exact gradient.

    A loss that all P ranks hold counts P times in their backward passes together, and every
    rank's parameter is a copy of one; so the mean is right. DistributedDataParallel does the
    same; use one of the two. Collective: every rank calls it after `backward`.
    """
    comm = comm or communicator()
    if comm.size == 1:
        return
    if model not in _checked:
        check_same_parameters(model, comm)
        _checked.add(model)
    sum_gradients([p for p in model.parameters() if p.requires_grad], comm, 1 / comm.size)


def sum_gradients(parameters: Sequence[Tensor], comm: Communicator, factor: float = 1.0) -> None:
    """Replace each gradient by the sum over ranks, times `factor`. Collective."""
    if comm.size == 1 or not parameters:
        return
    # Ranks may differ in which parameters took part (a branch taken on some); all must agree.
    present = torch.tensor(
        [p.grad is not None for p in parameters], dtype=torch.int32, device=parameters[0].device
    )
    comm.all_reduce(present, "max")
    for p, used in zip(parameters, present.tolist(), strict=True):
        if used and p.grad is None:
            p.grad = torch.zeros_like(p)
    for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
        flat = torch.cat([g.flatten() for g in bucket])
        comm.all_reduce(flat)
        if factor != 1:
            flat *= factor
        for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


def check_same_parameters(model: nn.Module, comm: Communicator) -> None:
    """Ranks train one model: different weights would average gradients of different functions."""
    if comm.size == 1 or not any(True for _ in model.parameters()):
        return
    everyone = comm.all_gather(torch.stack([_digest(p.detach()) for p in model.parameters()]))
    differ = (everyone != everyone[0]).any(0)
    names = [n for (n, _), d in zip(model.named_parameters(), differ.tolist(), strict=True) if d]
    if names:
        raise LayoutMismatch(
            f"the ranks have different values in {len(names)} parameters, {names[0]} first. Call "
            "mpi4dl.init() or torch.manual_seed(...) alike on every rank before the model is made, "
            "or load the same state_dict on all"
        )


def _digest(values: Tensor) -> Tensor:
    """A number that equal bits share, however many threads add them up: a sum of integers."""
    if values.is_complex():
        values = torch.view_as_real(values)
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = values.contiguous().view(widths[values.element_size()])
    return bits.sum(dtype=torch.int64)


def _buckets(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Gradients of one dtype and device, in groups of a few megabytes."""
    buckets: list[list[Tensor]] = []
    room: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for gradient in gradients:
        key = (gradient.dtype, gradient.device)
        size = gradient.numel() * gradient.element_size()
        bucket, used = room.get(key, ([], _BUCKET_BYTES))
        if used + size > _BUCKET_BYTES:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(gradient)
        room[key] = (bucket, used + size)
    return buckets
