"""Several ranks for a test: threads of this process, or the processes of torchrun.

The same tests run both ways. Under `torchrun --nproc-per-node 4 -m pytest ...` every process runs
every test; those that ask for another number of ranks are skipped there.
"""

from __future__ import annotations

import os
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
