"""A communicator that notes how long its rank was in it, about what, and how much it sent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from ..comm.communicator import Communicator, Message, Pending, ReduceOp


@dataclass(frozen=True, slots=True)
class Call:
    use: str
    """What the ranks talk about: `tiles`, `gradients`, `mirror`, or nothing particular."""

    start: float
    stop: float
    sent: int = 0
    """Bytes that this rank gave away in it."""
    together: bool = False
    """Whether all ranks of a group add something up, or tell each other."""


@dataclass
class Log:
    """The calls of all groups that began as one communicator."""

    calls: list[Call] = field(default_factory=list)

    @contextmanager
    def noting(self, use: str, sent: int = 0, together: bool = False) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.calls.append(Call(use, start, time.perf_counter(), sent, together))


class _TimedPending:
    def __init__(self, pending: Pending, log: Log, use: str) -> None:
        self._pending, self._log, self._use = pending, log, use

    def wait(self) -> None:
        with self._log.noting(self._use):
            self._pending.wait()


class TimedCommunicator:
    """Does what another communicator does. A single rank talks to nobody, and is not timed."""

    def __init__(self, inner: Communicator, log: Log, use: str = "") -> None:
        self.rank, self.size = inner.rank, inner.size
        self._inner, self._log, self._use = inner, log, use
        self._subgroups: dict[tuple[tuple[int, ...], str], Communicator | None] = {}

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        key = (tuple(ranks), use)
        if key not in self._subgroups:
            inner = self._inner.subgroup(ranks, use)
            if inner is not None and inner.size > 1:
                inner = TimedCommunicator(inner, self._log, use)
            self._subgroups[key] = inner
        return self._subgroups[key]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        with self._log.noting(self._use, sum(tensor.nbytes for _, tensor in sends)):
            pending = self._inner.start(sends, receives)
        return _TimedPending(pending, self._log, self._use)

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        with self._log.noting(self._use, tensor.nbytes, together=True):
            self._inner.all_reduce(tensor, op)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        with self._log.noting(self._use, tensor.nbytes, together=True):
            pending = self._inner.start_all_reduce(tensor)
        return _TimedPending(pending, self._log, self._use)

    def all_gather(self, tensor: Tensor) -> Tensor:
        with self._log.noting(self._use, tensor.nbytes, together=True):
            return self._inner.all_gather(tensor)

    def __repr__(self) -> str:
        return f"TimedCommunicator({self._inner!r})"


def timed(comm: Communicator, log: Log) -> Communicator:
    return TimedCommunicator(comm, log) if comm.size > 1 else comm
