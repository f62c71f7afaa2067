"""The command `mpi4dl`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from . import __version__
from .comm.launchers import started_by
from .comm.local_ranks import run_local_ranks
from .errors import Mpi4dlError
from .train import HALO, KINDS, MODELS, bench, flags, halo, halo_flags
from .train.answer import answered
from .train.arguments import Parser
from .train.completion import SHELLS, completion
from .train.doctor import doctor
from .train.kinds import TITLES
from .train.planning import add_planning
from .train.runs import command as training
from .train.runs import predict_command as predicting
from .train.runs.report import report

_EXAMPLES = """examples:
  mpi4dl doctor                                what is here, and whether it works
  mpi4dl bench spatial resnet --image-size 256 --batch-size 2
                                               train on four tiles and a fifth rank
  mpi4dl train config.yaml optimizer.lr=0.1    train as a file says
  mpi4dl bench halo exchange --image-size 1024 what a halo exchange costs
  mpi4dl plan --model resnet50 --image-size 16384 --batch-size 4 --devices 64 --device-memory 80GB
                                               the fastest plan that fits
  mpi4dl run --ranks 4 train.py --epochs 3     four ranks on this machine
  mpi4dl run --ranks 4 -m package.module       the same for a module
"""


BENCHES: dict[tuple[str, ...], Callable[[Sequence[str], str], int]] = {
    **{("bench", k, model): partial(bench, k, model) for k in KINDS for model in MODELS},
    **{("bench", "halo", name): partial(halo, name) for name in HALO},
}
RUNS: dict[tuple[str, ...], Callable[[Sequence[str], str], int]] = {
    **BENCHES,
    ("train",): training.train,
    ("predict",): predicting.predict_command,
}
"""Commands of several ranks, by their words. Each gets the words after those, and its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """What the command does; returns its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    for name, run in RUNS.items():
        if tuple(words[: len(name)]) == name:
            return run(words[len(name) :], " ".join(("mpi4dl", *name)))
    try:
        options = parser().parse_args(words)
        code: int = options.do(options)
    except Mpi4dlError as error:
        return answered(error, None)
    return code


def parser() -> Parser:
    """Of all commands."""
    made = Parser(
        prog="mpi4dl",
        description="Train vision models on images of any size, over whatever machines there are.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"mpi4dl {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    about = "train a model on images of any size, as a file says"
    training.flags(commands.add_parser("train", help=about, description=f"{about.capitalize()}."))
    _add_run(commands)
    _add_benches(commands)
    add_planning(commands)
    _add_others(commands)
    return made


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
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


def _add_benches(commands: argparse._SubParsersAction[Parser]) -> None:
    """Here to be helped with and completed: what runs them is `BENCHES`."""
    about = "train a model on synthetic or stored images, or exchange halos, and measure"
    benches = commands.add_parser("bench", help=about, description=f"{about.capitalize()}.")
    kinds = benches.add_subparsers(title="kinds", required=True, metavar="KIND")
    for kind in KINDS.values():
        models = kinds.add_parser(kind.name, help=kind.title).add_subparsers(
            title="models", required=True, metavar="MODEL"
        )
        for model in MODELS:
            flags(kind, models.add_parser(model, help=TITLES[model]))
    halos = kinds.add_parser("halo", help="halo exchanges, without a model")
    benchmarks = halos.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    for name, benchmark in HALO.items():
        halo_flags(benchmark, benchmarks.add_parser(name, help=benchmark.title))


def _add_others(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "masks or scores of images, by what a run has trained"
    predicting.flags(commands.add_parser("predict", help=about, description=about.capitalize()))
    about = "a run of mpi4dl train as one HTML page"
    page = commands.add_parser("report", help=about, description=f"{about.capitalize()}.")
    page.add_argument("run", metavar="RUN", help="the folder of the run")
    page.add_argument("--output", metavar="FILE", help="(default: report.html in that folder)")
    page.set_defaults(do=_report)
    about = "what is installed, and whether two ranks can train with it"
    commands.add_parser("doctor", help=about, description=about).set_defaults(
        do=lambda options: doctor(__version__)
    )
    about = "a checkpoint's weights as one safetensors file"
    export = commands.add_parser(
        "export",
        help=about,
        description=f"Write {about}, with the names of the model's own state_dict.",
    )
    export.add_argument("checkpoint", help="a checkpoint, or a folder of them: then the last one")
    export.add_argument("file", help="what to write, such as weights.safetensors")
    export.add_argument("--part", default="model", help="what of it (default: model)")
    export.set_defaults(do=_export)
    shells = commands.add_parser("completion", help="a shell's completion of this command")
    shells.add_argument("shell", choices=SHELLS)
    shells.set_defaults(do=lambda options: completion(parser(), options.shell))


def _export(options: argparse.Namespace) -> int:
    from .train.checkpoints import export_weights  # PyTorch's part of it takes a second

    count = export_weights(options.checkpoint, options.file, options.part)
    print(f"{options.file}: {count} tensors of {options.part}")
    return 0


def _report(options: argparse.Namespace) -> int:
    print(report(options.run, options.output))
    return 0


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
