"""The backend: each method of a ProcessGroup, as torch.distributed and its C++ call it.

Some are here under two names: PyTorch has renamed them, and calls the old ones or the new.
"""

# PyTorch's stubs give each method several signatures; the one it calls is here.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from ...errors import LaunchError
from . import operations
from .buffers import incoming, memory, outgoing
from .library import mpi
from .monitored import monitored_barrier
from .operations import Step
from .reductions import Reduction, reduction
from .task import Task
from .work import MpiWork, Together
from .world import world

_Tensors = list[Tensor]


class MpiProcessGroup(dist.ProcessGroup):
    """Ranks of MPI's world, with a communicator of their own."""

    def __init__(self, store: Store, ranks: Sequence[int], timeout: timedelta) -> None:
        self.ranks = tuple(ranks)
        super().__init__(self.ranks.index(world().rank), len(self.ranks))  # type: ignore[call-arg]
        self._store = store
        self.comm = world().group(self.ranks)
        self.timeout = timeout.total_seconds()
        self._name = self._description = ""
        self._coalesced: list[MpiWork] | None = None

    @classmethod
    def of(cls, options: Any) -> MpiProcessGroup:
        """As `register_backend` asks for it, with what PyTorch calls the extended interface."""
        everybody, rank = world(), options.group_rank
        ranks = list(options.global_ranks_in_group)
        if not ranks:  # the default group
            if (rank, options.group_size) != (everybody.rank, everybody.size):
                raise LaunchError(
                    f"torch.distributed was told rank {rank} of {options.group_size}, and MPI says "
                    f"rank {everybody.rank} of {everybody.size}: start with MPI's mpirun, and give "
                    "init_process_group what mpi4dl.comm.mpi.rendezvous() returns"
                )
            ranks = list(range(everybody.size))
            everybody.attend(options.store)
        return cls(options.store, ranks, options.timeout)

    # ── who this is ──────────────────────────────────────────────────────────────────────────────

    def getBackendName(self) -> str:  # noqa: N802
        return "mpi4py"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Store:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        if self.comm is not None and not world().broken:
            self.comm.Free()
        self.comm = None

    def abort(self) -> None:
        """Pending operations cannot be taken back: at exit the whole job ends."""
        world().give_up()

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def send(self, tensors: _Tensors, peer: int, tag: int) -> MpiWork:
        (tensor,) = tensors
        read = outgoing(tensor)
        request = self.comm.Isend(memory(read), peer, tag)
        what = partial(_message, "send", tensor, f"to rank {self.ranks[peer]}", tag)
        return self._begun(what, [request], tensors, read, peers=[self.ranks[peer]])

    def recv(self, tensors: _Tensors, peer: int, tag: int) -> MpiWork:
        (tensor,) = tensors
        what = partial(_message, "recv", tensor, f"from rank {self.ranks[peer]}", tag)
        return self._receive(tensor, peer, tag, what, [self.ranks[peer]])

    def recv_anysource(self, tensors: _Tensors, tag: int) -> MpiWork:
        (tensor,) = tensors
        what = partial(_message, "recv", tensor, "from any rank", tag)
        return self._receive(tensor, mpi().ANY_SOURCE, tag, what, [])

    def _receive(
        self, tensor: Tensor, source: int, tag: int, what: Callable[[], str], peers: list[int]
    ) -> MpiWork:
        written, bring = incoming(tensor)
        sources: list[int] = []  # the progress thread may be faster than the work is made

        def finish(statuses: list[Any]) -> None:
            sent = statuses[0].Get_count(mpi().BYTE)
            if sent != written.nbytes:
                raise RuntimeError(f"{what()} expects {written.nbytes} bytes, and {sent} came")
            if bring is not None:
                bring()
            sources.append(self.ranks[statuses[0].Get_source()])

        request = self.comm.Irecv(memory(written), source, tag)
        task = Task(what, [request], peers, self.timeout, finish, (written, tensor))
        return self._handed(MpiWork(task, [tensor], sources))

    # ── collectives ──────────────────────────────────────────────────────────────────────────────

    def broadcast(self, tensors: _Tensors, opts: Any) -> MpiWork:
        steps = [operations.broadcast(self.comm, t, opts.rootRank) for t in tensors]
        return self._collective("broadcast", steps, tensors, opts)

    def allreduce(self, tensors: _Tensors, opts: Any) -> MpiWork:
        steps = [operations.all_reduce(self.comm, t, self._how(opts, t)) for t in tensors]
        return self._collective("all_reduce", steps, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: _Tensors, opts: Any) -> MpiWork:
        root = opts.rootRank
        steps = [operations.reduce(self.comm, t, root, self._how(opts, t)) for t in tensors]
        return self._collective("reduce", steps, tensors, opts)

    def allgather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> MpiWork:
        pairs = zip(outputs, inputs, strict=True)
        steps = [operations.all_gather(self.comm, output, t) for output, t in pairs]
        return self._collective("all_gather", steps, outputs, opts)

    def allgather_coalesced(
        self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None
    ) -> MpiWork:
        by_input = [list(column) for column in zip(*outputs, strict=True)]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> MpiWork:
        pairs = zip(outputs, inputs, strict=True)
        steps = [operations.all_gather_single(self.comm, output, t) for output, t in pairs]
        return self._collective("all_gather_into_tensor", steps, outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MpiWork:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    def gather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any) -> MpiWork:
        targets = outputs[0] if outputs else []
        step = operations.gather(self.comm, targets, inputs[0], opts.rootRank)
        return self._collective("gather", [step], outputs, opts)

    def scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any) -> MpiWork:
        sources = inputs[0] if inputs else []
        step = operations.scatter(self.comm, outputs[0], sources, opts.rootRank)
        return self._collective("scatter", [step], outputs, opts)

    def reduce_scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any) -> MpiWork:
        pairs = zip(outputs, inputs, strict=True)
        steps = [
            operations.reduce_scatter(self.comm, output, parts, self._how(opts, output))
            for output, parts in pairs
        ]
        return self._collective("reduce_scatter", steps, outputs, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any
    ) -> MpiWork:
        pairs = zip(outputs, inputs, strict=True)
        steps = [
            operations.reduce_scatter_single(self.comm, output, t, self._how(opts, output))
            for output, t in pairs
        ]
        return self._collective("reduce_scatter_tensor", steps, outputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> MpiWork:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> MpiWork:
        step = operations.all_to_all(self.comm, outputs, inputs)
        return self._collective("all_to_all", [step], outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        to_receive: list[int],
        to_send: list[int],
        opts: Any = None,
    ) -> MpiWork:
        step = operations.all_to_all_single(self.comm, output, tensor, to_receive, to_send)
        return self._collective("all_to_all_single", [step], [output], opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> MpiWork:
        step = Step(self.comm.Ibarrier(), ())
        return self._collective("barrier", [step], [torch.empty(0)], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Rank 0 says who did not come in time. torch.distributed's own function asks for Gloo."""
        seconds = timeout.total_seconds() if timeout else self.timeout
        monitored_barrier(self.comm, self.ranks, seconds, wait_all_ranks)

    # ── several as one ───────────────────────────────────────────────────────────────────────────

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Together:
        works, self._coalesced = self._coalesced or [], None
        return Together(works)

    # ── what they share ──────────────────────────────────────────────────────────────────────────

    def _how(self, opts: Any, tensor: Tensor) -> Reduction:
        return reduction(opts.reduceOp, tensor.dtype, len(self.ranks))

    def _collective(self, name: str, steps: list[Step], outputs: Any, opts: Any) -> MpiWork:
        requests, finishes, keep = operations.join(steps)

        def finish(_: list[Any]) -> None:
            for one in finishes:
                one()

        what = partial(_of_all, name, outputs, self.ranks)
        after = finish if finishes else None
        return self._begun(what, requests, outputs, keep, after, opts=opts)

    def _begun(
        self,
        what: Callable[[], str],
        requests: list[Any],
        outputs: Any,
        keep: object,
        finish: Callable[[list[Any]], None] | None = None,
        peers: Sequence[int] | None = None,
        opts: Any = None,
    ) -> MpiWork:
        limit = getattr(opts, "timeout", None)
        seconds = limit.total_seconds() if limit and limit > timedelta(0) else self.timeout
        others = self.ranks if peers is None else peers
        return self._handed(MpiWork(Task(what, requests, others, seconds, finish, keep), outputs))

    def _handed(self, work: MpiWork) -> MpiWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


def _message(name: str, tensor: Tensor, whom: str, tag: int) -> str:
    return f"{name} of {tuple(tensor.shape)} {tensor.dtype} {whom}, tag {tag}"


def _of_all(name: str, outputs: Any, ranks: Sequence[int]) -> str:
    shapes = [tuple(t.shape) for t in outputs if isinstance(t, Tensor)]
    names = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]} … {ranks[-1]}"
    return f"{name}{f' of {shapes[0]}' if shapes else ''} over ranks {names}"
