"""Communicators that pass on to another one, and count on the way, or send halves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...comm.communicator import Communicator, Message, Pending, ReduceOp


class Through:
    """A communicator that hands everything to another."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        return self.comm.subgroup(ranks, use)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        return self.comm.start(sends, receives)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self.comm.all_reduce(tensor, op)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        return self.comm.start_all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self.comm.all_gather(tensor)


class Counted(Through):
    """Counts what arrives at this rank."""

    messages = received = reduced = 0

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        self.messages += len(receives)
        self.received += sum(t.numel() * t.element_size() for _, t in receives)
        return super().start(sends, receives)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self.reduced += tensor.numel() * tensor.element_size()
        super().all_reduce(tensor, op)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        self.reduced += tensor.numel() * tensor.element_size()
        return super().start_all_reduce(tensor)

    def counts(self) -> list[int]:
        return [self.messages, self.received, self.reduced]


class _Widening:
    """Values that travel as float16, to be put where they belong."""

    def __init__(self, pending: Pending, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._pending, self._pairs = pending, pairs

    def wait(self) -> None:
        self._pending.wait()
        for place, arrived in self._pairs:
            place.copy_(arrived)


class Float16(Through):
    """Floating point values travel as float16."""

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        halves = [(peer, _half(t, torch.empty_like(t, dtype=torch.half))) for peer, t in receives]
        leaving = [(peer, _half(t, t.half())) for peer, t in sends]
        pairs = [(t, h) for (_, t), (_, h) in zip(receives, halves, strict=True) if t is not h]
        return _Widening(self.comm.start(leaving, halves), pairs)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        half = _half(tensor, tensor.half())
        self.comm.all_reduce(half, op)
        tensor.copy_(half)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        half = _half(tensor, tensor.half())
        return _Widening(self.comm.start_all_reduce(half), [(tensor, half)])


def _half(tensor: Tensor, half: Tensor) -> Tensor:
    return half if tensor.is_floating_point() else tensor
