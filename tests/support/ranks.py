"""Several ranks for a test: threads of this process, or the processes of torchrun.

The same tests run both ways. Under `torchrun --nproc-per-node 4 -m pytest ...` every process runs
every test; those that ask for another number of ranks are skipped there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

import pytest

import mpi4dl
from mpi4dl.comm.communicator import Communicator
from mpi4dl.comm.threads import run_threads

T = TypeVar("T")
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ


def run_ranks(size: int, program: Callable[[Communicator], T]) -> list[T]:
    """What each rank returned; under torchrun only what this one did."""
    if not UNDER_TORCHRUN:
        return run_threads(size, program)
    comm = mpi4dl.init()
    if comm.size != size:
        pytest.skip(f"asks for {size} ranks, and torchrun started {comm.size}")
    return [program(comm)]


def every_rank_raises(
    size: int,
    program: Callable[[Communicator], object],
    error: type[Exception] | tuple[type[Exception], ...],
    match: str = "",
    alike: bool = True,
) -> None:
    """All ranks raise this error; `alike`: with one message, that names no rank's own sizes.

    Each rank catches its own, so that none is stopped by another's: a rank that refuses alone
    leaves the others waiting, or going on with wrong numbers, and `pytest.raises` around
    `run_ranks` would not notice.
    """

    def caught(comm: Communicator) -> Exception | None:
        try:
            program(comm)
        except Exception as raised:
            return raised.with_traceback(None)
        return None

    # A rank that waits for one which refused alone soon fails as well.
    raised = run_ranks(size, caught) if UNDER_TORCHRUN else run_threads(size, caught, timeout=20)
    for rank, one in enumerate(raised):
        assert isinstance(one, error), f"rank {rank} raised {one!r}"
        assert re.search(match, str(one)), f"rank {rank} says {str(one)!r}, which lacks {match!r}"
    assert not alike or len({repr(one) for one in raised}) == 1, f"the ranks say {raised}"
