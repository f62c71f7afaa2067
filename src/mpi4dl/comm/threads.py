"""Ranks that are threads of one process.

Each thread runs the same program on its own tensors, and talks through queues. Made for tests:
nine ranks start in a millisecond, and a rank that fails stops the others at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TypeVar

import torch
from torch import Tensor

from .communicator import Communicator, Message, Pending, ReduceOp, Subgroups, use

T = TypeVar("T")

_COMBINE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda stacked, dim: stacked.sum(dim),
    "max": lambda stacked, dim: stacked.amax(dim),
    "min": lambda stacked, dim: stacked.amin(dim),
}


class _World:
    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.slots: list[Tensor | None] = [None] * size
        self.mail = {(a, b): _Mail() for a in range(size) for b in range(size)}
        self.sent = 0
        self.failed = False
        self.groups: dict[tuple[tuple[int, ...], str], _World] = {}
        self._making = threading.Lock()

    def group(self, ranks: tuple[int, ...], use: str) -> _World:
        """The world of some of the ranks: the same one for all who ask."""
        key = (ranks, use)
        with self._making:
            if key not in self.groups:
                self.groups[key] = _World(len(ranks), self.timeout)
                if self.failed:
                    self.groups[key].abort()
            return self.groups[key]

    def abort(self) -> None:
        """Wake every rank that waits: one of them has failed."""
        with self._making:
            self.failed = True
            groups = list(self.groups.values())
        self.barrier.abort()
        for box in self.mail.values():
            box.messages.put(None)
        for world in groups:
            world.abort()


class _Mail:
    """From one rank to another. Receives may be waited for in any order: they are numbered."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        self._expected = self._taken = 0
        self._early: dict[int, Tensor] = {}

    def expect(self) -> int:
        """The number of the next receive."""
        self._expected += 1
        return self._expected

    def take(self, number: int, timeout: float) -> Tensor | None:
        """That message; None if it does not come."""
        while number not in self._early:
            try:
                message = self.messages.get(timeout=timeout)
            except queue.Empty:
                return None
            if message is None:
                return None
            self._taken += 1
            self._early[self._taken] = message
        return self._early.pop(number)


class _Receiving:
    def __init__(self, world: _World, rank: int, receives: Sequence[Message]) -> None:
        self._world, self._rank = world, rank
        self._receives = [(p, world.mail[p, rank].expect(), buffer) for p, buffer in receives]

    def wait(self) -> None:
        for peer, number, buffer in self._receives:
            message = self._world.mail[peer, self._rank].take(number, self._world.timeout)
            if message is None:
                raise RuntimeError(f"rank {self._rank} got nothing from rank {peer}")
            if message.shape != buffer.shape or message.dtype != buffer.dtype:
                raise RuntimeError(
                    f"rank {self._rank} expects {tuple(buffer.shape)} {buffer.dtype} from rank "
                    f"{peer}, which sent {tuple(message.shape)} {message.dtype}"
                )
            buffer.copy_(message)
        self._receives.clear()


class _AddingUp:
    def __init__(self, total: Tensor, arriving: Pending, parts: dict[int, Tensor]) -> None:
        self._total, self._arriving, self._parts = total, arriving, parts

    def wait(self) -> None:
        self._arriving.wait()
        in_order = [self._parts[rank] for rank in sorted(self._parts)]
        self._total.copy_(torch.stack(in_order).sum(0))


class ThreadCommunicator:
    """One rank of a group of threads; made by `run_threads`."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.size = world.size
        self._subgroups = Subgroups(rank, self._subgroup)

    @property
    def messages_sent(self) -> int:
        """By all ranks together since the start."""
        return self._world.sent

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        return self._subgroups(ranks, use)

    def _subgroup(self, ranks: tuple[int, ...], use: str) -> ThreadCommunicator:
        return ThreadCommunicator(self._world.group(ranks, use), ranks.index(self.rank))

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        for peer, tensor in sends:
            self._world.sent += 1
            self._world.mail[self.rank, peer].messages.put(tensor.detach().clone())
        return _Receiving(self._world, self.rank, receives)

    def all_gather(self, tensor: Tensor) -> Tensor:
        world = self._world
        world.slots[self.rank] = tensor.detach().clone()
        world.barrier.wait()
        out = torch.stack([slot for slot in world.slots if slot is not None])
        world.barrier.wait()
        return out

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        others = [rank for rank in range(self.size) if rank != self.rank]
        buffers = {rank: torch.empty_like(tensor) for rank in others}
        arriving = self.start([(rank, tensor) for rank in others], list(buffers.items()))
        return _AddingUp(tensor, arriving, {**buffers, self.rank: tensor})

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        tensor.copy_(_COMBINE[op](self.all_gather(tensor), 0))


def run_threads(
    size: int, program: Callable[[ThreadCommunicator], T], timeout: float = 60.0
) -> list[T]:
    """Run `program` on `size` ranks and return what each returned; the first failure is raised."""
    world = _World(size, timeout)
    results: dict[int, T] = {}
    failures: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            with use(ThreadCommunicator(world, rank)) as communicator:
                results[rank] = program(communicator)  # type: ignore[arg-type]
        except BaseException as error:
            failures.append((rank, error))
            world.abort()

    threads = [
        threading.Thread(target=copy_context().run, args=(run, rank), daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0][1]
    return [results[rank] for rank in range(size)]
