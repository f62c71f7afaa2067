"""The processes that mpirun started: where they run, whether they still do, how they meet."""

from __future__ import annotations

import atexit
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..rendezvous import told_over_mpi
from ..shared_memory import machine, runs
from .library import mpi

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_GRACE = 2.0  # seconds in which the other ranks can say what they wait for


class World:
    """All ranks of MPI's COMM_WORLD. Made once, by all of them together."""

    def __init__(self) -> None:
        self.comm = mpi().COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        here, sees_processes = _machine()
        table = self.comm.allgather((here, os.getpid(), cores))
        self._processes = {rank: process for rank, (_, process, _) in enumerate(table)}
        local = {rank: cores for rank, (where, _, cores) in enumerate(table) if where == here}
        self.neighbours = frozenset(local)
        self._visible = self.neighbours if sees_processes else frozenset()
        usable = {core for cores in local.values() for core in cores}
        self.crowded = len(local) > (len(usable) or os.cpu_count() or 1)
        self._stores: list[Store] = []
        self.broken = False

    def group(self, ranks: Iterable[int]) -> Any:
        """A communicator of these ranks, in this order. They call it, and nobody else has to."""
        members = self.comm.group.Incl(list(ranks))
        try:
            return self.comm.Create_group(members)
        finally:
            members.Free()

    def attend(self, store: Store) -> None:
        """Where ranks leave word that they have ended, although their process may still be there.

        Whoever leaves the program waits in MPI_Finalize for the others, and looks alive.
        """
        self._stores.append(store)

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Those that can no longer answer."""
        return [rank for rank in ranks if rank != self.rank and self._has_ended(rank)]

    def _has_ended(self, rank: int) -> bool:
        if rank in self._visible and not runs(self._processes[rank]):
            return True
        try:
            return any(store.check([_farewell(rank)]) for store in self._stores[-1:])
        except RuntimeError:  # the store's home is gone, and that is rank 0
            return rank == 0

    def give_up(self) -> None:
        """Note that ranks wait for what will not come: MPI_Finalize would wait for it as well."""
        self.broken = True

    def leave(self) -> None:
        """At exit: say farewell; where communication has failed, end the whole job."""
        if self.broken:
            time.sleep(_GRACE)
            self.comm.Abort(1)
        for store in self._stores[-1:]:
            with suppress(RuntimeError):  # the store's home is gone
                store.set(_farewell(self.rank), "")


def _farewell(rank: int) -> str:
    return f"mpi4dl/ended/{rank}"


def _machine() -> tuple[str, bool]:
    """Its name, and whether its processes can see each other."""
    try:
        return machine(), True
    except OSError:
        return platform.node(), False


@lru_cache(maxsize=1)
def world() -> World:
    """The first call is collective over all ranks of MPI."""
    made = World()
    atexit.register(made.leave)
    return made


def rendezvous() -> tuple[int, int, Store]:
    """This rank, how many there are, and the store where they meet. Collective.

    On one machine it listens on the loopback only.
    """
    everybody = world()
    together = len(everybody.neighbours) == everybody.size
    return everybody.rank, everybody.size, told_over_mpi(everybody.comm, together)
