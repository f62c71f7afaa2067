"""Ranks that are processes: a communicator over torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .communicator import Done, Message, Pending, ReduceOp

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class _Works:
    """Outstanding requests, and the buffers that must stay alive until they are done."""

    def __init__(self, works: list[dist.Work], buffers: list[Tensor]) -> None:
        self._works = works
        self._buffers = buffers

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._buffers.clear()


class ProcessGroupCommunicator:
    """The ranks of a torch.distributed process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._peers = [dist.get_global_rank(group, r) for r in range(self.size)]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        if not sends and not receives:
            return Done()
        # Receives first, so that every message finds its buffer waiting.
        requests = [
            dist.P2POp(dist.irecv, t, self._peers[peer], self.group) for peer, t in receives
        ] + [dist.P2POp(dist.isend, t, self._peers[peer], self.group) for peer, t in sends]
        works = dist.batch_isend_irecv(requests)
        return _Works(works, [t for _, t in (*sends, *receives)])

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        dist.all_reduce(tensor, _OPS[op], group=self.group)

    def all_gather(self, tensor: Tensor) -> Tensor:
        out = tensor.new_empty((self.size, *tensor.shape))
        # The list form: gloo has no single-buffer all-gather for every version we support.
        dist.all_gather(list(out.unbind()), tensor.contiguous(), group=self.group)
        return out

    def __repr__(self) -> str:
        return f"ProcessGroupCommunicator(rank {self.rank} of {self.size})"


def is_available() -> bool:
    return bool(torch.distributed.is_available() and dist.is_initialized())
