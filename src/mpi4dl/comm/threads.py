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

from .communicator import Message, Pending, ReduceOp, use

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
        self.mail: dict[tuple[int, int], queue.SimpleQueue[Tensor | None]] = {
            (a, b): queue.SimpleQueue() for a in range(size) for b in range(size)
        }
        self.sent = 0

    def abort(self) -> None:
        """Wake every rank that waits: one of them has failed."""
        self.barrier.abort()
        for box in self.mail.values():
            box.put(None)


class _Receiving:
    def __init__(self, world: _World, rank: int, receives: Sequence[Message]) -> None:
        self._world, self._rank, self._receives = world, rank, receives

    def wait(self) -> None:
        for peer, buffer in self._receives:
            try:
                message = self._world.mail[peer, self._rank].get(timeout=self._world.timeout)
            except queue.Empty:
                message = None
            if message is None:
                raise RuntimeError(f"rank {self._rank} got nothing from rank {peer}")
            if message.shape != buffer.shape or message.dtype != buffer.dtype:
                raise RuntimeError(
                    f"rank {self._rank} expects {tuple(buffer.shape)} {buffer.dtype} from rank "
                    f"{peer}, which sent {tuple(message.shape)} {message.dtype}"
                )
            buffer.copy_(message)


class ThreadCommunicator:
    """One rank of a group of threads; made by `run_threads`."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.size = world.size

    @property
    def messages_sent(self) -> int:
        """By all ranks together since the start."""
        return self._world.sent

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        for peer, tensor in sends:
            self._world.sent += 1
            self._world.mail[self.rank, peer].put(tensor.detach().clone())
        return _Receiving(self._world, self.rank, receives)

    def all_gather(self, tensor: Tensor) -> Tensor:
        world = self._world
        world.slots[self.rank] = tensor.detach().clone()
        world.barrier.wait()
        out = torch.stack([slot for slot in world.slots if slot is not None])
        world.barrier.wait()
        return out

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
