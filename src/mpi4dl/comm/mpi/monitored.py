"""A barrier that says who is missing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...errors import LaunchError
from .library import mpi
from .task import Task
from .world import world


def monitored_barrier(comm: Any, ranks: Sequence[int], timeout: float, all_of_them: bool) -> None:
    """Rank 0 hears everybody, then answers. With `all_of_them` it names all that are missing."""
    tag = comm.Get_attr(mpi().TAG_UB)  # programs rarely use the last one
    nothing = bytearray(1)
    if comm.rank:
        requests = [comm.Isend(nothing, 0, tag), comm.Irecv(nothing, 0, tag)]
        Task(lambda: "monitored_barrier", requests, ranks[:1], timeout).wait()
        return
    deadline = time.monotonic() + timeout
    missing = []
    for peer in range(1, comm.size):
        request = comm.Irecv(bytearray(1), peer, tag)
        arriving = Task(lambda: "monitored_barrier", [request], [ranks[peer]], timeout)
        try:
            arriving.wait(max(deadline - time.monotonic(), 1e-3))
        except LaunchError:
            missing.append(ranks[peer])
            if not all_of_them:
                break
    if missing:
        names = "rank " + ", rank ".join(map(str, missing))
        raise LaunchError(
            f"rank {world().rank} waited {timeout:g} seconds in monitored_barrier for {names}"
        )
    for peer in range(1, comm.size):
        comm.Isend(nothing, peer, tag).Wait()
