"""From every rank's share of the gradients to the exact ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..errors import LayoutMismatch
from .communicator import Communicator, Done, Pending
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
    if comm.size == 1:
        return

    def add_up(flat: Tensor) -> Pending:
        # Nothing runs beside it, and what is posted at once has to be in memory at once.
        comm.all_reduce(flat)
        return Done()

    for group in bucketed(parameters):
        bucket = Bucket(group)
        bucket.start(add_up)
        bucket.finish(factor)


class Bucket:
    """Gradients that travel together, and with them whether there are any.

    Ranks may differ in which parameters took part (a branch taken on some); where one has a
    gradient, all get it, and what has none anywhere stays without.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._sizes = [p.numel() for p in parameters]
        self._flat: Tensor | None = None
        self._pending: Pending | None = None

    def start(self, add_up: Callable[[Tensor], Pending]) -> None:
        """`add_up` begins to replace a tensor by its sum over ranks."""
        gradients = [p.grad for p in self._parameters]
        pieces = [
            p.new_zeros(p.numel()) if g is None else g.detach().flatten()
            for p, g in zip(self._parameters, gradients, strict=True)
        ]
        there = pieces[0].new_tensor([float(g is not None) for g in gradients])
        self._flat = torch.cat([*pieces, there])
        self._pending = add_up(self._flat)

    def finish(self, factor: float = 1.0) -> None:
        """The sums, times `factor`, are the gradients."""
        assert self._flat is not None
        assert self._pending is not None
        self._pending.wait()
        if factor != 1:
            self._flat.mul_(factor)
        *parts, there = self._flat.split([*self._sizes, len(self._sizes)])
        gradients, sums = [], []
        for p, part, counted in zip(self._parameters, parts, there.tolist(), strict=True):
            if not counted:
                continue
            if p.grad is None:
                p.grad = torch.empty_like(p)
            gradients.append(p.grad.detach())
            sums.append(part.view(p.shape))
        if sums:
            torch._foreach_copy_(gradients, sums)
        self._flat = self._pending = None


def bucketed(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Parameters of one dtype and device, in groups of a few megabytes."""
    buckets: list[list[Tensor]] = []
    room: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for parameter in parameters:
        key = (parameter.dtype, parameter.device)
        size = parameter.numel() * parameter.element_size()
        bucket, used = room.get(key, ([], _BUCKET_BYTES))
        if used + size > _BUCKET_BYTES:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(parameter)
        room[key] = (bucket, used + size)
    return buckets


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
