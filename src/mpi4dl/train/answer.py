"""One answer to a mistake, however many ranks have noticed it."""

from __future__ import annotations

import sys
import time

from ..comm.launchers import Started
from ..errors import DataError, LaunchError, Mpi4dlError

EXIT_CODE = 2

_A_MOMENT = 2.0
"""Seconds that others leave to the rank that speaks: launchers end all ranks when one has ended."""

_OF_A_MACHINE = (DataError, LaunchError)


def answered(error: Mpi4dlError, started: Started | None) -> int:
    """Before ranks have met, all have made the same mistake: the first says so. What may be wrong
    on one machine only, the first rank of that machine says."""
    local = isinstance(error, _OF_A_MACHINE)
    if started is None or started.rank == 0 or (local and started.local_rank == 0):
        _say(error)
    else:
        time.sleep(_A_MOMENT)
    return EXIT_CODE


def answered_later(error: Mpi4dlError, started: Started | None) -> int:
    """In the middle of the work any rank may be the only one to know."""
    if started is None or started.rank == 0:
        _say(error)
    else:
        time.sleep(_A_MOMENT)  # in which a launcher ends it, if rank 0 has said the same
        _say(f"rank {started.rank}: {error}")
    return EXIT_CODE


def _say(what: object) -> None:
    print(f"mpi4dl: {what}", file=sys.stderr, flush=True)
