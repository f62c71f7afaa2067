"""Ranks whose messages have no tags, and where order is everything: NCCL's rules, with threads.

Every rank has one queue of operations for each group of ranks, as a communicator on one stream
has. Only what stands first in a queue goes on; a message passes when both of its ends stand first,
and a collective when all have come to it. Nothing is buffered: what is sent is read from the
sender's memory when the receiver is there, however much later that is.

The k-th operation of a rank with another must be the counterpart of the other's k-th with it. If it
is not, both hear of it at once; a deadlock is noticed when nothing has moved for a while.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from mpi4dl.comm.communicator import SERIAL, Communicator, Message, use
from mpi4dl.comm.threads import run_threads

T = TypeVar("T")

_PATIENCE = 20.0  # seconds


class OutOfOrder(RuntimeError):
    pass


@dataclass
class End:
    """A message at one of its ends."""

    source: int
    target: int
    tensor: Tensor

    @property
    def kind(self) -> tuple[Any, ...]:
        """What both ends must have alike."""
        return self.source, self.target, self.tensor.dtype, self.tensor.numel()

    def __str__(self) -> str:
        shape = f"{self.tensor.dtype} × {self.tensor.numel()}"
        return f"{self.source}→{self.target} {shape}"


@dataclass
class Operation:
    """What a rank begins at once: messages that pass together, or its part of a collective."""

    messages: list[End] = field(default_factory=list)
    collective: tuple[Any, ...] = ()
    value: Tensor | None = None
    result: Tensor | None = None
    done: bool = False


class Group:
    """The queues of some ranks, and what each pair of them has begun so far."""

    def __init__(self, size: int, lock: threading.Condition, log: Log) -> None:
        self.size, self.lock, self.log = size, lock, log
        self.queues: list[deque[Operation]] = [deque() for _ in range(size)]
        self.begun: dict[tuple[int, int], list[End]] = {}

    def begin(self, rank: int, operation: Operation) -> None:
        with self.lock:
            # Messages that begin together have no order among them.
            for message in sorted(operation.messages, key=lambda m: (m.source, m.target)):
                self._compare(rank, message)
            self.queues[rank].append(operation)
            while self._advance():
                self.lock.notify_all()

    def wait(self, operation: Operation) -> None:
        with self.lock:
            moved = self.lock.wait_for(lambda: operation.done or self.log.failure, _PATIENCE)
            if not moved:
                self.log.failure = "deadlock: nothing moves"
                self.lock.notify_all()
            if not operation.done:
                raise OutOfOrder(self.log.failure)

    def _compare(self, rank: int, message: End) -> None:
        peer = message.target if message.source == rank else message.source
        mine = self.begun.setdefault((rank, peer), [])
        theirs = self.begun.setdefault((peer, rank), [])
        mine.append(message)
        self.log.messages += 1
        if len(theirs) >= len(mine):
            other = theirs[len(mine) - 1]
            if other.kind != message.kind:
                self.log.failure = (
                    f"operation {len(mine)} of the ranks {rank} and {peer} is {message} at one "
                    f"end and {other} at the other"
                )
                self.lock.notify_all()
                raise OutOfOrder(self.log.failure)

    def _advance(self) -> bool:
        """Let pass what can; whether anything did."""
        first = [queue[0] if queue else None for queue in self.queues]
        moved = self._pass_messages(first) or self._pass_collective(first)
        for queue in self.queues:
            if queue and queue[0].done:
                queue.popleft()
        return moved

    def _pass_messages(self, first: Sequence[Operation | None]) -> bool:
        moved = False
        for rank, operation in enumerate(first):
            for message in list(operation.messages if operation else ()):
                other = first[message.target]
                if message.source != rank or other is None:
                    continue
                found = [m for m in other.messages if m.source == rank]
                if found:
                    found[0].tensor.copy_(message.tensor.detach().view_as(found[0].tensor))
                    operation.messages.remove(message)
                    other.messages.remove(found[0])
                    moved = True
        for operation in first:
            if operation and not operation.messages and not operation.collective:
                operation.done = moved = True
        return moved

    def _pass_collective(self, first: Sequence[Operation | None]) -> bool:
        present = [operation for operation in first if operation and operation.collective]
        if len(present) < self.size:
            return False
        kinds = {operation.collective for operation in present}
        if len(kinds) > 1:
            self.log.failure = f"ranks are at different collectives: {kinds}"
            self.lock.notify_all()
            raise OutOfOrder(self.log.failure)
        together = torch.stack([o.value.detach() for o in present if o.value is not None])
        name, *_ = kinds.pop()
        combine = {"sum": lambda: together.sum(0), "max": lambda: together.amax(0)}
        combine |= {"min": lambda: together.amin(0), "gather": lambda: together}
        for operation in present:
            result = combine[name]()
            if operation.result is None:
                operation.result = result
            else:
                operation.result.copy_(result)
            operation.done = True
        self.log.collectives += 1
        return True


@dataclass
class Log:
    messages: int = 0
    collectives: int = 0
    failure: str = ""


class _Begun:
    def __init__(self, group: Group, operation: Operation) -> None:
        self._group, self._operation = group, operation

    def wait(self) -> None:
        self._group.wait(self._operation)


class OrderedCommunicator:
    """One rank; made by `run_ordered`."""

    def __init__(self, rank: int, group: Group, groups: dict[Any, Group]) -> None:
        self.rank, self.size = rank, group.size
        self._group, self._groups = group, groups
        self._subgroups: dict[Any, Communicator] = {}

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        if self.rank not in ranks:
            return None
        if len(ranks) == 1:
            return SERIAL
        key = (id(self._group), tuple(ranks), use)
        if key not in self._subgroups:
            with self._group.lock:
                made = Group(len(ranks), self._group.lock, self._group.log)
                group = self._groups.setdefault(key, made)
            self._subgroups[key] = OrderedCommunicator(
                list(ranks).index(self.rank), group, self._groups
            )
        return self._subgroups[key]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Begun:
        leaving = [End(self.rank, peer, tensor.detach()) for peer, tensor in sends]
        arriving = [End(peer, self.rank, tensor) for peer, tensor in receives]
        return self._begin(Operation([*leaving, *arriving]))

    def start_all_reduce(self, tensor: Tensor) -> _Begun:
        kind = ("sum", tensor.dtype, tensor.shape)
        return self._begin(Operation(collective=kind, value=tensor, result=tensor))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        kind = (op, tensor.dtype, tensor.shape)
        self._begin(Operation(collective=kind, value=tensor, result=tensor.detach())).wait()

    def all_gather(self, tensor: Tensor) -> Tensor:
        operation = Operation(collective=("gather", tensor.dtype, tensor.shape), value=tensor)
        self._begin(operation).wait()
        assert operation.result is not None
        return operation.result

    def _begin(self, operation: Operation) -> _Begun:
        self._group.begin(self.rank, operation)
        return _Begun(self._group, operation)


def run_ordered(size: int, program: Callable[[Any], T]) -> tuple[list[T], Log]:
    """What each rank returned, and what was sent."""
    log = Log()
    world = Group(size, threading.Condition(), log)
    groups: dict[Any, Group] = {}

    def run(comm: Communicator) -> T:
        try:
            with use(OrderedCommunicator(comm.rank, world, groups)) as ordered:
                return program(ordered)
        except BaseException as error:
            with world.lock:
                log.failure = log.failure or f"rank {comm.rank} failed: {error!r}"
                world.lock.notify_all()
            raise

    results = run_threads(size, run)
    queues = [queue for group in (world, *groups.values()) for queue in group.queues]
    left = [str(end) for queue in queues for operation in queue for end in operation.messages]
    assert not left, f"never received: {left}"
    return results, log
