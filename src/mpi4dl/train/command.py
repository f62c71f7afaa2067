"""What all commands that want ranks have in common, from the first word to the exit code.

words ─▶ decide ─▶ start ranks, each with the same words ─▶ ⋯
            │      or, as one of them: work
            └──▶ a mistake: one answer, exit code 2
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from ..comm.launchers import Started, started_by
from ..comm.local_ranks import run_local_ranks
from ..errors import LaunchError, Mpi4dlError
from .answer import answered, answered_later

STARTING = (
    "Under torchrun, mpirun or srun their ranks take part; without a launcher this starts as\n"
    "many on this machine as it needs."
)

Decide = Callable[[Started | None], Callable[[], int]]
"""Finds all mistakes that can be known before ranks start; gives what is to be done."""


def carried_out(decide: Decide) -> int:
    """The exit code."""
    try:
        started = started_by(os.environ)
    except LaunchError as error:
        return answered(error, None)
    try:
        work = decide(started)
    except Mpi4dlError as error:
        return answered(error, started)
    try:
        return work()
    except Mpi4dlError as error:
        return answered_later(error, started)
    except KeyboardInterrupt:
        return 130


def words_of(arguments: Sequence[str] | None, program: str | None) -> tuple[Sequence[str], str]:
    """Those of this process, and its name, if none are given."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return words, Path(sys.argv[0]).name if program is None else program


def parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str], started: Started | None
) -> Namespace:
    """One rank answers --help."""
    with contextlib.ExitStack() as stack:
        if started is not None and started.rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        return parser.parse_intermixed_args(list(arguments))


def start_ranks(count: int, words: Sequence[str], command: str = "bench") -> int:
    """`mpi4dl bench` and these words, as so many ranks of this machine, of which rank 0 speaks."""
    return run_local_ranks(count, [sys.executable, "-m", "mpi4dl", command, *words], speaker=0)
