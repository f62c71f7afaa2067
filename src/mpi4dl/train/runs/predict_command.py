"""`mpi4dl predict RUN IMAGE...`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...comm.launch import init
from ...comm.launchers import Started
from ...data.listings import images_in
from ...errors import UsageError
from ..arguments import Parser
from ..command import carried_out, parsed
from ..surroundings import backend_of, check_surroundings, share_threads
from .checks import surroundings
from .command import begin_ranks
from .making import model_maker
from .masks import FORMATS, check_format
from .predicting import Wanted, predict
from .reading import read
from .records import CONFIGURATION
from .sections import Configuration
from .trained_weights import checkpoint_of

_ABOUT = "Predict with what a run has trained, on images of any size."
_EXAMPLES = """examples:
  mpi4dl predict runs/nuclei slides/new --output masks
  mpi4dl predict runs/nuclei slide.svs --format zarr --set plan.num_spatial_parts=4
"""


def flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("run", metavar="RUN", help="the folder of the run")
    add("images", nargs="+", metavar="IMAGE", help="images, or folders of them")
    add("--output", default="predictions", metavar="FOLDER", help="(default: predictions)")
    add("--weights", metavar="FILE", help="default: of the run's best checkpoint, or last")
    add("--format", default="tiff", help=f"of masks: {' or '.join(FORMATS)} (default: tiff)")
    add("--chunk", type=int, default=512, help="pixels of a tile's side (default: 512)")
    add("--set", action="append", default=[], metavar="section.field=value", help="another plan, …")
    return parser


def predict_command(arguments: Sequence[str], program: str = "mpi4dl predict") -> int:
    """What the command does; returns its exit code."""

    parser = flags(Parser(prog=program, description=_ABOUT))

    def decide(started: Started | None) -> Callable[[], int]:
        made, wanted = _decided(parsed(parser, arguments, started), started)
        if started is None and made.plan.world_size > 1:
            return partial(begin_ranks, made, "predict", arguments)
        return partial(_run, made, wanted, started)

    return carried_out(decide)


def _decided(options: argparse.Namespace, started: Started | None) -> tuple[Configuration, Wanted]:
    file = Path(options.run) / CONFIGURATION
    if not file.is_file():
        raise UsageError(f"{options.run} is no folder of a run: it has no {CONFIGURATION}")
    # Another plan has other stages; a model that is not cut needs no balance.
    other = any(word.startswith("plan.split_size") for word in options.set)
    made = read(file, [*(["plan.balance=null"] if other else []), *options.set])
    c = replace(made, folder=options.run, plan=replace(made.plan, replicas=1))
    if started is not None:
        c.plan.check_world(started.size)
    check_surroundings(surroundings(c), started, c.plan.world_size)
    check_format(options.format)
    if options.chunk < 16 or options.chunk % 16:
        raise UsageError(f"--chunk is {options.chunk}; it must be a multiple of 16")
    model_maker(c.model)
    weights = None if options.weights is None else Path(options.weights)
    if weights is None:
        checkpoint_of(Path(options.run))
    elif not weights.is_file():
        raise UsageError(f"--weights {weights} is no file")
    images = tuple(image for name in options.images for image in _images(Path(name)))
    output = Path(options.output)
    return c, Wanted(images, output, weights, options.format, options.chunk)


def _images(path: Path) -> list[Path]:
    found = images_in(path) if path.is_dir() and path.suffix != ".zarr" else [path]
    if not found or not path.exists():
        raise UsageError(f"{path} has no images" if path.exists() else f"{path} does not exist")
    return found


def _run(configuration: Configuration, wanted: Wanted, started: Started | None) -> int:
    share_threads(started)
    comm = init(backend_of(surroundings(configuration)), ranks=1)
    for file in predict(configuration, wanted, comm):
        if comm.rank == 0:
            print(file, flush=True)
    return 0
