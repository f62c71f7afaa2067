"""The Communicator of tiles, over MPI directly: no layer of torch.distributed in between.

What a step exchanges, the next one exchanges again, mostly between the same addresses, since
PyTorch's allocator hands memory back that was just returned. So every message is a persistent
request, kept by address, size and peer; when it comes again, it only has to be started.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..communicator import SERIAL, Communicator, Done, Message, Pending, ReduceOp
from . import operations
from .buffers import incoming, is_ready, memory, outgoing
from .library import mpi
from .operations import Step
from .progress import progress
from .reductions import reduction
from .task import Task
from .world import world

_KEPT = 4096  # persistent requests that wait to be used again
_LARGE = 2**15  # bytes from which a message needs both sides to advance it
_TIMEOUT = 1800.0  # seconds, as torch.distributed has it
_NAMES: dict[ReduceOp, str] = {"sum": "SUM", "max": "MAX", "min": "MIN"}
_Key = tuple[bool, int, int, int]  # sent or received, with whom, from or to where, bytes


class MpiCommunicator:
    """Some of MPI's ranks, in the order of `ranks`. Made by all of them together."""

    def __init__(self, ranks: Sequence[int], timeout: float = _TIMEOUT) -> None:
        self.ranks = tuple(ranks)
        self.rank, self.size = self.ranks.index(world().rank), len(self.ranks)
        self._comm = world().group(self.ranks)
        self._timeout = timeout
        self._requests: dict[_Key, Any] = {}
        self._start_all = mpi().Prequest.Startall
        self._bytes = mpi().BYTE
        self._subgroups: dict[tuple[tuple[int, ...], str], MpiCommunicator] = {}
        atexit.register(self._release)

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        if self.rank not in ranks:
            return None
        if len(ranks) == 1:
            return SERIAL
        key = (tuple(ranks), use)
        if key not in self._subgroups:
            self._subgroups[key] = MpiCommunicator([self.ranks[r] for r in ranks], self._timeout)
        return self._subgroups[key]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        if not sends and not receives:
            return Done()
        keep, keys, staged, largest = [], [], [], 0
        for peer, tensor in receives:
            written, bring = (tensor, None) if is_ready(tensor) else incoming(tensor)
            if bring is not None:
                staged.append(bring)
            keys.append((False, peer, written.data_ptr(), written.nbytes))
            keep.append(written)
        for peer, tensor in sends:
            read = outgoing(tensor)
            keys.append((True, peer, read.data_ptr(), read.nbytes))
            keep.append(read)
            largest = max(largest, read.nbytes)
        requests = [self._request(key, tensor) for key, tensor in zip(keys, keep, strict=True)]
        count = len(receives)

        def finish(statuses: list[Any]) -> None:
            for key, status in zip(keys[:count], statuses, strict=False):
                self._check(key, status)
            for bring in staged:
                bring()
            self._put_back(keys, requests)

        def what() -> str:
            return f"exchange with ranks {sorted({self.ranks[key[1]] for key in keys})}"

        peers = [self.ranks[key[1]] for key in keys]
        self._start_all(requests)
        task = Task(what, requests, peers, self._timeout, finish, keep)
        if largest >= _LARGE:
            progress().add(task)
        return task

    def _request(self, key: _Key, tensor: Tensor) -> Any:
        """One that is not under way: removed from those kept until it is over."""
        request = self._requests.pop(key, None)
        if request is not None:
            return request
        sent, peer, _, _ = key
        make = self._comm.Send_init if sent else self._comm.Recv_init
        return make(memory(tensor), peer)

    def _put_back(self, keys: Sequence[_Key], requests: Sequence[Any]) -> None:
        kept = self._requests
        for key, request in zip(keys, requests, strict=True):
            if key in kept:  # the same was under way twice
                request.Free()
            else:
                kept[key] = request
        while len(kept) > _KEPT:
            kept.pop(next(iter(kept))).Free()

    def _check(self, key: _Key, status: Any) -> None:
        _, peer, _, expected = key
        sent = status.Get_count(self._bytes)
        if sent != expected:
            raise RuntimeError(
                f"rank {self.rank} expects {expected} bytes from rank {peer}, which sent {sent}: "
                "the ranks do not run the same program on tensors of the same shapes"
            )

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self._all_reduced(tensor, op).wait()

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        task = self._all_reduced(tensor, "sum")
        progress().add(task)
        return task

    def _all_reduced(self, tensor: Tensor, op: ReduceOp) -> Task:
        how = reduction(_NAMES[op], tensor.dtype, self.size)
        step = operations.all_reduce(self._comm, tensor, how)
        return self._task(lambda: f"all_reduce of {tuple(tensor.shape)}", step)

    def all_gather(self, tensor: Tensor) -> Tensor:
        out = tensor.new_empty((self.size, *tensor.shape))
        step = operations.all_gather_single(self._comm, out, tensor)
        self._task(lambda: f"all_gather of {tuple(tensor.shape)}", step).wait()
        return out

    def _task(self, what: Callable[[], str], step: Step) -> Task:
        finish = step.finish
        after = None if finish is None else lambda _: finish()
        return Task(what, [step.request], self.ranks, self._timeout, after, step.keep)

    def _release(self) -> None:
        """At exit: MPI complains of requests that nobody freed."""
        for request in self._requests.values():
            request.Free()
        self._requests.clear()

    def __repr__(self) -> str:
        return f"MpiCommunicator(rank {self.rank} of {self.size})"
