"""`bench`: what the scripts under benchmarks/ and `mpi4dl bench` are.

flags ─▶ plan ─▶ checks ─▶ ranks ─▶ training ─▶ report
└─────── mistakes ──────┘
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..comm.launch import init
from ..comm.launchers import Started, started_by
from ..comm.local_ranks import run_local_ranks
from ..errors import LaunchError, Mpi4dlError
from .answer import answered, answered_later
from .arguments import Parser, add_flags
from .configuration import Configuration, configured
from .data import source
from .kinds import KINDS, TITLES, Kind
from .loop import trained
from .report import report_text, write_report
from .surroundings import backend_of, check_surroundings

_EXAMPLES = {
    "layer": "--image-size 256 --batch-size 4 --split-size 2 --parts 2",
    "spatial": "--image-size 512 --batch-size 2 --num-spatial-parts 4 --slice-method vertical",
    "gems": "--image-size 256 --batch-size 1 --split-size 2 --times 2",
    "gems-spatial": "--image-size 512 --batch-size 1 --split-size 2 --times 2",
}


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples as they stand, and every default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        shown = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
        return text if shown or "default:" in text else f"{text} (default: %(default)s)"


def bench(
    kind: str, model: str, arguments: Sequence[str] | None = None, program: str | None = None
) -> int:
    """Train and measure; returns the exit code. `arguments` are those of this process if none are
    given, and `program` its name in help and messages."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    program = Path(sys.argv[0]).name if program is None else program
    try:
        started = started_by(os.environ)
    except LaunchError as error:
        return answered(error, None)
    try:
        configuration = _decided(KINDS[kind], model, arguments, program, started)
    except Mpi4dlError as error:
        return answered(error, started)
    if started is None and configuration.plan.world_size > 1:
        return _start_ranks(configuration, arguments)
    try:
        _run(configuration, started)
    except Mpi4dlError as error:
        return answered_later(error, started)
    except KeyboardInterrupt:
        return 130
    return 0


def flags(kind: Kind, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser of a benchmark, made of one that has a name."""
    parser.formatter_class = _Help
    parser.epilog = (
        f"example:\n  {parser.prog} {_EXAMPLES[kind.name]}\n\n"
        "Under torchrun, mpirun or srun their ranks take part; without a launcher this starts as\n"
        "many on this machine as it needs."
    )
    add_flags(parser, kind)
    return parser


def _decided(
    kind: Kind, model: str, arguments: Sequence[str], program: str, started: Started | None
) -> Configuration:
    """All mistakes that can be known before ranks start are made here."""
    silent = started is not None and started.rank > 0
    with contextlib.ExitStack() as stack:
        if silent:  # one rank answers --help
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        about = f"{TITLES[model]}, {kind.title}."
        options = flags(kind, Parser(prog=program, description=about)).parse_args(arguments)
    configuration = configured(kind, model, options, _number_of_ranks(started))
    check_surroundings(options, started, configuration.plan.world_size)
    source(options, configuration.samples)
    return configuration


def _number_of_ranks(started: Started | None) -> int | None:
    if started is not None:
        return started.size
    text = os.environ.get("MPI4DL_RANKS")
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise LaunchError(f"MPI4DL_RANKS is {text!r}; it must be a number of ranks")
    return int(text) if text else None


def _start_ranks(configuration: Configuration, arguments: Sequence[str]) -> int:
    """The same command as so many ranks. What was computed is not computed again on each."""
    plan = configuration.plan
    assert plan.balance is not None
    command = [sys.executable, "-m", "mpi4dl", "bench", configuration.kind.name]
    balance = ["--balance", ",".join(map(str, plan.balance))]
    return run_local_ranks(
        plan.world_size, [*command, configuration.model, *arguments, *balance], speaker=0
    )


def _run(configuration: Configuration, started: Started | None) -> None:
    options, plan = configuration.options, configuration.plan
    _share_threads(started)
    comm = init(backend_of(options), ranks=1)
    if comm.rank == 0:
        notes = [f"note: {note}" for note in configuration.notes()]
        print("\n".join([configuration.title, "", str(plan), "", *notes]), flush=True)
    measured = trained(configuration, comm, configuration.build)
    if comm.rank == 0:
        print(report_text(configuration, measured), flush=True)
        if options.json:
            write_report(options.json, configuration, measured)
            print(f"\nwritten: {options.json}", flush=True)


def _share_threads(started: Started | None) -> None:
    """The cores of a machine are for all ranks on it, unless the launcher said so already."""
    if started is not None and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, cores // (started.local_size or started.size)))
