"""One set of processes for plans of any size: a plan for fewer ranks runs on the first of them.

As `support.ranks.run_ranks`, which skips a test that asks for another number of processes. Groups
of processes are made by all of them, members or not. So the first rank tells those who have no part
in a test which groups it makes, and they make them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

import mpi4dl
from mpi4dl.comm.communicator import Communicator, use
from mpi4dl.comm.objects import receive, send
from support.ranks import UNDER_TORCHRUN, run_ranks

T = TypeVar("T")

_DEVICE = torch.device("cpu")
_announcing: dict[int, Communicator] = {}


class _Announcing:
    """A communicator of some ranks whose groups the others hear of."""

    def __init__(self, inner: Communicator, world: Communicator) -> None:
        self.inner, self._world = inner, world
        self.rank, self.size = inner.rank, inner.size
        self._known: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        key = (tuple(ranks), use)
        if key not in self._known:
            self._known.add(key)
            self.tell(tuple(ranks))
        return self.inner.subgroup(ranks, use)

    def tell(self, ranks: tuple[int, ...] | None) -> None:
        """None: this is all."""
        if self.rank == 0:
            outsiders = range(self.size, self._world.size)
            for pending in send(ranks, outsiders, self._world, _DEVICE):
                pending.wait()


def run_pool(size: int, program: Callable[[Communicator], T]) -> list[T]:
    """What each rank returned; under torchrun what this one did, if it is one of the first."""
    if not UNDER_TORCHRUN or (world := mpi4dl.init()).size <= size:
        return run_ranks(size, program)
    if size not in _announcing:
        some = world.subgroup(range(size), "pool")
        if some is not None:
            _announcing[size] = _Announcing(some, world)
    comm = _announcing.get(size)
    if comm is None:
        _follow(world)
        return []
    try:
        with use(comm):
            return [program(comm)]
    finally:
        comm.tell(None)


_followed = 0


def _follow(world: Communicator) -> None:
    global _followed
    while (ranks := receive(0, world, _DEVICE)) is not None:
        _followed += 1
        assert world.subgroup(ranks, f"followed {_followed}") is None
