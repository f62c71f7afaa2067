"""Ranks that are processes: a communicator over torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from .communicator import Communicator, Done, Message, Pending, ReduceOp

Connect = Callable[[tuple[int, ...]], Communicator | None]
"""From processes, in order, to their communicator; None for the others."""

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class _Works:
    """Outstanding requests, and the buffers that must stay alive until they are done."""

    def __init__(
        self, works: list[dist.Work], buffers: list[Tensor], staged: list[tuple[Tensor, Tensor]]
    ) -> None:
        self._works = works
        self._buffers = buffers
        self._staged = staged  # (where a message belongs, where it arrives)

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        for target, arrived in self._staged:
            target.copy_(arrived)
        self._buffers.clear()


_open: WeakSet[ProcessGroupCommunicator] = WeakSet()


class ProcessGroupCommunicator:
    """The ranks of a torch.distributed process group, in the order of `peers`.

    Those are their numbers among all processes. `connect` makes a communicator of others.
    """

    def __init__(self, group: dist.ProcessGroup, peers: Sequence[int], connect: Connect) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        # Gloo moves memory of the host only: tensors of a GPU pass through it.
        self._through_host = dist.get_backend(group) == "gloo"
        in_group = [dist.get_global_rank(group, r) for r in range(self.size)]
        self.peers = tuple(peers)
        self.rank = self.peers.index(dist.get_rank())
        self._places = [self.peers.index(peer) for peer in in_group]
        self._connect = connect
        self._subgroups: dict[tuple[tuple[int, ...], str], Communicator | None] = {}
        _open.add(self)

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        key = (tuple(ranks), use)
        if key not in self._subgroups:
            self._subgroups[key] = self._connect(tuple(self.peers[rank] for rank in ranks))
        return self._subgroups[key]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        if not sends and not receives:
            return Done()
        # Receives first, so that every message finds its buffer waiting.
        arriving = [(peer, self._to_receive(t)) for peer, t in receives]
        leaving = [(peer, self._to_send(t)) for peer, t in sends]
        requests = [
            dist.P2POp(dist.irecv, t, self.peers[peer], self.group) for peer, t in arriving
        ] + [dist.P2POp(dist.isend, t, self.peers[peer], self.group) for peer, t in leaving]
        works = dist.batch_isend_irecv(requests)
        staged = [
            (t, arrived)
            for (_, t), (_, arrived) in zip(receives, arriving, strict=True)
            if arrived is not t
        ]
        return _Works(works, [t for _, t in (*leaving, *arriving)], staged)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        sent = self._to_send(tensor)
        dist.all_reduce(sent, _OPS[op], group=self.group)
        if sent is not tensor:
            tensor.copy_(sent)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        sent = self._to_send(tensor)
        work = dist.all_reduce(sent, group=self.group, async_op=True)
        return _Works([work], [sent], [] if sent is tensor else [(tensor, sent)])

    def all_gather(self, tensor: Tensor) -> Tensor:
        sent = self._to_send(tensor)
        out = sent.new_empty((self.size, *sent.shape))
        # The list form: gloo has no single-buffer all-gather for every version we support.
        dist.all_gather([out[place] for place in self._places], sent, group=self.group)
        return out.to(tensor.device)

    def _to_send(self, tensor: Tensor) -> Tensor:
        return (tensor.cpu() if self._through_host and tensor.is_cuda else tensor).contiguous()

    def _to_receive(self, tensor: Tensor) -> Tensor:
        on_host = self._through_host and tensor.is_cuda
        return torch.empty_like(tensor, device="cpu") if on_host else tensor

    def __repr__(self) -> str:
        return f"ProcessGroupCommunicator(rank {self.rank} of {self.size})"


def close_all() -> None:
    """Let go of the groups, whoever still has a communicator.

    Gloo's threads end with their group. One that outlives the interpreter and then frees the
    tensor of its last message ends the process with an abort.
    """
    for comm in list(_open):
        del comm.group
    _open.clear()


def is_available() -> bool:
    return bool(torch.distributed.is_available() and dist.is_initialized())
