"""`mpi4dl train config.yaml`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...comm.launch import init
from ...comm.launchers import Started
from ..arguments import Parser
from ..command import carried_out, parsed, start_ranks
from ..interruption import REQUEUE
from ..surroundings import backend_of, share_threads
from .checks import checked_configuration, surroundings
from .fitting import fit
from .reading import read, written
from .records import CONFIGURATION
from .sections import Configuration

_EXAMPLES = """examples:
  mpi4dl train config.yaml
  mpi4dl train config.yaml optimizer.lr=0.1 plan.num_spatial_parts=4 folder=runs/second
  torchrun --nproc-per-node 4 -m mpi4dl train config.yaml

docs/train.md says what can be configured.
"""


def flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("file", metavar="config.yaml", help="what to train, and how")
    parser.add_argument(
        "words", nargs="*", metavar="section.field=value", help="in place of what the file says"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.field=value",
        help="the same",
    )
    return parser


def train(arguments: Sequence[str], program: str = "mpi4dl train") -> int:
    """What the command does; returns its exit code."""
    parser = flags(Parser(prog=program, description="Train a model as a file says."))

    def decide(started: Started | None) -> Callable[[], int]:
        options = parsed(parser, arguments, started)
        made = read(options.file, [*options.words, *options.set])
        made = checked_configuration(made, started)
        if started is None and made.plan.world_size > 1:
            return partial(begin_ranks, made, "train", arguments)
        return partial(_run, made, started)

    return carried_out(decide)


def begin_ranks(configuration: Configuration, command: str, words: Sequence[str]) -> int:
    """The same command as so many ranks. What was computed is not computed again on each."""
    plan = configuration.plan
    balance = [] if plan.balance is None else [f"--set=plan.balance={list(plan.balance)}"]
    return start_ranks(plan.world_size, [*words, *balance], command)


def _run(configuration: Configuration, started: Started | None) -> int:
    share_threads(started)
    comm = init(backend_of(surroundings(configuration)), ranks=1)
    if comm.rank == 0:
        print(f"{configuration.plan}\n", flush=True)
        write_configuration(configuration)
    result = fit(configuration, comm, signals=True)
    if comm.rank == 0:
        print(f"everything about this run: {configuration.folder}", flush=True)
    return REQUEUE if result.requeue else 0


def write_configuration(configuration: Configuration) -> None:
    """In full, in the folder of the run."""
    folder = Path(configuration.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIGURATION).write_text(written(configuration), encoding="utf-8")
