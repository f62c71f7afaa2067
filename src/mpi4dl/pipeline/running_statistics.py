"""Running statistics as if one process had seen all micro-batches, in order.

BatchNorm moves its running mean by a part of the way towards each micro-batch's mean. Copies of a
stage see different micro-batches, in different orders, and some see one twice (to compute
activations again). So for the time of a step a normalisation only reports what it has seen, and
afterwards each rank knows what the moves would have been in one process:

    r ← (1 − p)ᴹ r + Σ p (1 − p)ᴹ⁻¹⁻ᵍ sᵍ          for micro-batch g of M, in one process's order

A sum, so it does not matter who has seen what. All other buffers are those of the first copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..comm.communicator import Communicator

_NAMES = ("running_mean", "running_var")


class RunningStatistics:
    """Of a stage's normalisations; `copies` are all ranks that have the stage."""

    def __init__(self, stage: nn.Module, copies: Communicator) -> None:
        self._norms = [
            module
            for module in stage.modules()
            if isinstance(module, _NormBase) and module.running_mean is not None
        ]
        moved = {id(b) for norm in self._norms for b in norm.buffers(recurse=False)}
        self._others = [b for b in stage.buffers() if id(b) not in moved]
        self._copies = copies
        self._earlier: dict[_NormBase, list[tuple[Tensor, Tensor]]] | None = None
        self._seen: dict[_NormBase, _Seen] = {}

    @contextmanager
    def step(self, count: int) -> Iterator[None]:
        """`count` micro-batches are trained, by all copies together. Collective for the copies."""
        moving = [norm for norm in self._norms if norm.training]
        before = [{n: b.clone() for n, b in norm.named_buffers(recurse=False)} for norm in moving]
        momenta = [norm.momentum for norm in moving]
        handles = [norm.register_forward_pre_hook(self._called) for norm in moving]
        self._seen = {n: _Seen(n, p, count) for n, p in zip(moving, momenta, strict=True)}
        for norm in moving:
            norm.momentum = 1.0  # the running mean becomes the mean that was seen last
        try:
            yield
        finally:
            for norm, momentum, handle in zip(moving, momenta, handles, strict=True):
                norm.momentum = momentum
                handle.remove()
            seen, self._seen = self._seen, {}
        for one in seen.values():
            one.sums[2].fill_(one.moves)
        self._combine(seen)
        for norm, buffers in zip(moving, before, strict=True):
            seen[norm].move(norm, buffers)

    @contextmanager
    def micro_batch(self, number: int, share: float) -> Iterator[None]:
        """A forward, of micro-batch `number` in the order of one process.

        `share` is 1 divided by the number of ranks that report the same: the tiles of the stage.
        """
        if not self._seen:
            yield
            return
        self._earlier = {}
        try:
            yield
        finally:
            earlier, self._earlier = self._earlier, None
        # All normalisations at once; one that ran twice, in two turns.
        alike: dict[tuple[int, float], tuple[list[Tensor], list[Tensor]]] = {}
        for norm, values in earlier.items():
            values.append(_last_seen(norm))
            seen = self._seen[norm]
            for call, weight in enumerate(seen.weights(number, len(values), share)):
                into, what = alike.setdefault((call, weight), ([], []))
                into += seen.sums[:2]
                what += values[call]
        for (_, weight), (into, what) in alike.items():
            torch._foreach_add_(into, what, alpha=weight)

    def _called(self, norm: nn.Module, args: Any) -> None:
        """Before a forward. Only what a norm that runs twice saw first has to be copied."""
        if self._earlier is not None and isinstance(norm, _NormBase):  # no second run of a forward
            if norm in self._earlier:
                mean, var = _last_seen(norm)
                self._earlier[norm].append((mean.clone(), var.clone()))
            else:
                self._earlier[norm] = []

    def _combine(self, seen: dict[_NormBase, _Seen]) -> None:
        if self._copies.size == 1:
            return
        sums = [value for one in seen.values() for value in one.sums]
        for dtype in sorted({value.dtype for value in sums}, key=str):
            alike = [value for value in sums if value.dtype == dtype]
            flat = torch.cat([value.flatten() for value in alike])
            self._copies.all_reduce(flat)
            for value, part in zip(alike, flat.split([v.numel() for v in alike]), strict=True):
                value.copy_(part.view_as(value))
        for buffer in self._others:
            broadcast(buffer, self._copies)


class _Seen:
    """What a normalisation's running statistics are to be moved by."""

    def __init__(self, norm: _NormBase, momentum: float | None, count: int) -> None:
        assert norm.running_mean is not None
        self._momentum, self._count = momentum, count
        mean = torch.zeros_like(norm.running_mean)
        # The sums for mean and variance, and how many moves there are: of this rank, then of all.
        self.sums = (mean, mean.clone(), mean.new_zeros(1))
        self.moves = 0.0

    def weights(self, number: int, calls: int, share: float) -> Iterator[float]:
        """With which to add what was seen in the calls of a micro-batch. They are counted here."""
        self.moves += share * calls
        p, moves = self._momentum, self._count * calls
        for call in range(calls):
            later = moves - 1 - (number * calls + call)
            yield share * (1 / moves if p is None else p * (1 - p) ** later)

    def move(self, norm: _NormBase, before: dict[str, Tensor]) -> None:
        p, moves = self._momentum, round(self.sums[2].item())
        trained = before.get("num_batches_tracked")
        keep, gain = (1 - p) ** moves if p is not None else 1.0, 1.0
        if p is None:  # the mean of everything seen so far
            assert trained is not None
            keep = trained.item() / max(trained.item() + moves, 1)
            gain = 1 - keep
        with torch.no_grad():
            for name, total in zip(_NAMES, self.sums, strict=False):
                getattr(norm, name).copy_(before[name] * keep + total * gain)
            # An instance normalisation has that number and leaves it at zero.
            if trained is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(trained + moves * isinstance(norm, _BatchNorm))


def _last_seen(norm: _NormBase) -> tuple[Tensor, Tensor]:
    """With a momentum of 1, nothing else is in the running statistics."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


def broadcast(tensor: Tensor, comm: Communicator) -> None:
    """What the first rank has. Collective."""
    if comm.rank == 0:
        comm.start([(peer, tensor) for peer in range(1, comm.size)], []).wait()
    else:
        buffer = tensor.detach().clone(memory_format=torch.contiguous_format)
        comm.start([], [(0, buffer)]).wait()
        with torch.no_grad():
            tensor.copy_(buffer)
