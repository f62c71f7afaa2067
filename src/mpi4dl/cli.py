"""The command `mpi4dl`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import __version__
from .comm.launchers import started_by
from .comm.local_ranks import run_local_ranks
from .errors import Mpi4dlError

_EXAMPLES = """examples:
  mpi4dl run --ranks 4 train.py --epochs 3     four ranks on this machine
  mpi4dl run --ranks 4 -m package.module       the same for a module
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """What the command does; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.do(options)
    except Mpi4dlError as error:
        print(f"mpi4dl: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpi4dl",
        description="Train vision models on images of any size, over whatever machines there are.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mpi4dl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="start a program as several ranks on this machine",
        description="Start a Python program as several ranks on this machine. What they print "
        "comes with the rank before it; if one fails, all end, and this with its exit code.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--ranks",
        type=int,
        default=os.environ.get("MPI4DL_RANKS", 1),
        help="how many (default: MPI4DL_RANKS, else 1)",
    )
    run.add_argument("program", nargs=argparse.REMAINDER, help="a script or -m module, arguments")
    run.set_defaults(do=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        print("mpi4dl run: name a script, such as train.py, or -m and a module", file=sys.stderr)
        return 2
    if options.ranks < 1:
        print(f"mpi4dl run: --ranks is {options.ranks}; it must be at least 1", file=sys.stderr)
        return 2
    started = started_by(os.environ)
    if started is not None:
        print(
            f"mpi4dl run: this is already rank {started.rank} of {started.size}, started by "
            f"{started.launcher.name}: start the program itself with that launcher",
            file=sys.stderr,
        )
        return 2
    return run_local_ranks(options.ranks, [sys.executable, *program])
