"""`bench`: what the scripts under benchmarks/ and `mpi4dl bench` are.

flags ─▶ plan ─▶ checks ─▶ ranks ─▶ training ─▶ report
└─────── mistakes ──────┘
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from ..comm.launch import init
from ..comm.launchers import Started
from ..errors import LaunchError
from .arguments import Help, Parser, add_flags
from .command import STARTING, carried_out, parsed, start_ranks, words_of
from .configuration import Configuration, configured
from .data import source
from .foreseen import foreseen
from .kinds import KINDS, TITLES, Kind
from .loop import trained
from .report import report_text, write_report
from .surroundings import backend_of, check_surroundings, share_threads

_EXAMPLES = {
    "layer": "--image-size 256 --batch-size 4 --split-size 2 --parts 2",
    "spatial": "--image-size 512 --batch-size 2 --num-spatial-parts 4 --slice-method vertical",
    "gems": "--image-size 256 --batch-size 1 --split-size 2 --times 2",
    "gems-spatial": "--image-size 512 --batch-size 1 --split-size 2 --times 2",
}


def bench(
    kind: str, model: str, arguments: Sequence[str] | None = None, program: str | None = None
) -> int:
    """Train and measure; returns the exit code. `arguments` are those of this process if none are
    given, and `program` its name in help and messages."""
    words, program = words_of(arguments, program)
    about = f"{TITLES[model]}, {KINDS[kind].title}."
    parser = flags(KINDS[kind], Parser(prog=program, description=about))

    def decide(started: Started | None) -> Callable[[], int]:
        configuration = _decided(KINDS[kind], model, parsed(parser, words, started), started)
        if started is None and configuration.plan.world_size > 1:
            return partial(_start_ranks, configuration, words)
        return partial(_run, configuration, started)

    return carried_out(decide)


def flags(kind: Kind, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser of a benchmark, made of one that has a name."""
    parser.formatter_class = Help
    parser.epilog = f"example:\n  {parser.prog} {_EXAMPLES[kind.name]}\n\n{STARTING}"
    add_flags(parser, kind)
    return parser


def _decided(kind: Kind, model: str, options: Namespace, started: Started | None) -> Configuration:
    """All mistakes that can be known before ranks start are made here."""
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


def _start_ranks(configuration: Configuration, words: Sequence[str]) -> int:
    """The same command as so many ranks. What was computed is not computed again on each."""
    plan = configuration.plan
    assert plan.balance is not None
    balance = ["--balance", ",".join(map(str, plan.balance))]
    return start_ranks(
        plan.world_size, [configuration.kind.name, configuration.model, *words, *balance]
    )


def _run(configuration: Configuration, started: Started | None) -> int:
    options, plan = configuration.options, configuration.plan
    share_threads(started)
    comm = init(backend_of(options), ranks=1)
    if comm.rank == 0:
        notes = [f"note: {note}" for note in configuration.notes()]
        print("\n".join([configuration.title, "", str(plan), "", *notes]), flush=True)
    measured = trained(configuration, comm, configuration.build)
    if comm.rank == 0:
        print(report_text(configuration, measured), flush=True)
        comparison = foreseen(configuration, measured)
        if comparison is not None:
            print(comparison, flush=True)
        if options.json:
            write_report(options.json, configuration, measured)
            print(f"\nwritten: {options.json}", flush=True)
    return 0
