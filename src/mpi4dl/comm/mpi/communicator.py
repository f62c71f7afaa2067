"""The Communicator of tiles, over MPI directly: no layer of torch.distributed in between.

What a step exchanges, the next one exchanges again, mostly between the same addresses, since
PyTorch's allocator hands memory back that was just returned. So every message is a persistent
request, kept by address, size and peer; when it comes again, it only has to be started.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..communicator import Communicator, Done, Message, Pending, ReduceOp, Subgroups
from . import operations
from .buffers import Finish, incoming, memory, outgoing
from .library import mpi
from .operations import Step
from .progress import progress
from .reductions import reduction
from .task import Task
from .world import world

_KEPT = 1024  # exchanges that wait to be used again
_LARGE = 2**17  # bytes from which a wait may save more than a look of the progress thread costs
_SOON = 1e-3  # seconds; what was waited for later than that, is left alone the next time as well
_NAMES: dict[ReduceOp, str] = {"sum": "SUM", "max": "MAX", "min": "MIN"}
_Key = tuple[int, ...]  # how many are received; then of every message the peer, where, and bytes


class Exchange(Task):
    """Messages that travel together, as often as they are started; received ones come first.

    When it has been waited for, it lies in `kept` until the same is to be exchanged again: so it is
    waited for once after each start.
    """

    __slots__ = (
        "_alone", "_bytes", "_expected", "_kept", "_key", "_large", "_staged", "_start_all",
    )  # fmt: skip

    def __init__(
        self,
        key: _Key,
        kept: dict[_Key, Exchange],
        requests: list[Any],
        ranks: Sequence[int],
        timeout: float,
    ) -> None:
        super().__init__(self._named_after_peers, requests, ranks, timeout, self._check_sizes)
        self._key, self._kept = key, kept
        self._start_all, self._bytes = mpi().Prequest.Startall, mpi().BYTE
        sizes = key[3::3]
        self._expected = list(zip(self._statuses, sizes, ranks, strict=True))[: key[0]]
        self._large, self._alone = max(sizes) >= _LARGE, False

    def start(self, keep: object, staged: Sequence[Finish]) -> None:
        """`keep` is what the messages lie in; `staged` bring them from there where they belong."""
        self._keep, self._staged, self._next = keep, staged, 0
        self._start_all(self._requests)
        # Only now: what is not under way looks complete to MPI, and the progress thread may look.
        self.done = self.awaited = False
        if self._large:
            self._started = time.monotonic()
            progress().add(self, urgent=self._alone)

    def wait(self, timeout: float | None = None) -> None:
        if self._keep is None and self.done:
            return
        if self._large:
            self._alone = time.monotonic() - self._started > _SOON
        super().wait(timeout)
        self._keep = None
        for bring in self._staged:
            bring()
        if self._kept.setdefault(self._key, self) is not self:
            self.free()  # the same was under way twice

    def free(self) -> None:
        for request in self._requests:
            request.Free()

    def _let_go(self) -> None:
        """Nothing yet: it is to be started again."""

    def _named_after_peers(self) -> str:
        return f"exchange with ranks {sorted(set(self.peers))}"

    def _check_sizes(self, statuses: list[Any]) -> None:
        for status, expected, peer in self._expected:
            sent = status.Get_count(self._bytes)
            if sent != expected:
                raise RuntimeError(
                    f"rank {world().rank} expects {expected} bytes from rank {peer}, which sent "
                    f"{sent}: the ranks do not run the same program on tensors of the same shapes"
                )


class MpiCommunicator:
    """Some of MPI's ranks, in the order of `ranks`. Made by all of them together."""

    def __init__(self, ranks: Sequence[int], timeout: float) -> None:
        """`timeout` is in seconds, and for every wait."""
        self.ranks = tuple(ranks)
        self.rank, self.size = self.ranks.index(world().rank), len(self.ranks)
        self._comm = world().group(self.ranks)
        self._timeout = timeout
        self._exchanges: dict[_Key, Exchange] = {}
        self._subgroups = Subgroups(self.rank, self._subgroup)
        atexit.register(self._release)

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        return self._subgroups(ranks, use)

    def _subgroup(self, ranks: tuple[int, ...], use: str) -> MpiCommunicator:
        return MpiCommunicator([self.ranks[rank] for rank in ranks], self._timeout)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        if not sends and not receives:
            return Done()
        key, keep, staged = [len(receives)], [], []
        for peer, tensor in receives:
            if not (tensor.is_cpu and tensor.is_contiguous()):
                tensor, bring = incoming(tensor)
                staged += [bring] if bring else []
            key += (peer, tensor.data_ptr(), tensor.nbytes)
            keep.append(tensor)
        for peer, tensor in sends:
            if not (tensor.is_cpu and tensor.is_contiguous()):
                tensor = outgoing(tensor)
            key += (peer, tensor.data_ptr(), tensor.nbytes)
            keep.append(tensor)
        known = tuple(key)
        exchange = self._exchanges.pop(known, None) or self._new(known, keep)
        exchange.start(keep, staged)
        return exchange

    def _new(self, key: _Key, keep: Sequence[Tensor]) -> Exchange:
        peers, count, kept = key[1::3], key[0], self._exchanges
        if len(kept) >= _KEPT:
            kept.pop(next(iter(kept))).free()
        make = [self._comm.Recv_init] * count + [self._comm.Send_init] * (len(peers) - count)
        requests = [m(memory(t), p) for m, t, p in zip(make, keep, peers, strict=True)]
        return Exchange(key, kept, requests, [self.ranks[p] for p in peers], self._timeout)

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
        for exchange in self._exchanges.values():
            exchange.free()
        self._exchanges.clear()

    def __repr__(self) -> str:
        return f"MpiCommunicator(rank {self.rank} of {self.size})"
