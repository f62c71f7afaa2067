"""The flags of the training commands: those of the original with its defaults, and ours."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn

from ..errors import UsageError
from ..schedule import SCHEDULES
from .kinds import Kind

_FLAGS_OF_PLANS = {
    "num_spatial_parts": "--num-spatial-parts",
    "spatial_size": "--spatial-size",
    "split_size": "--split-size",
    "slice_method": "--slice-method",
    "fused_layers": "--fused-layers",
    "local_dp": "--local-DP",
    "halo_d2=True": "--halo-D2",
    "halo_d2": "--halo-D2",
    "master_comm_opt=False": "no --enable-master-comm-opt",
    "master_comm_opt": "--enable-master-comm-opt",
    "checkpoint_activations": "--checkpoint-activations",
    "num_layers": "--num-layers",
    "num_filters": "--num-filters",
}


def in_flags(message: str) -> str:
    """A message about a plan in the words of the command line."""
    for word, flag in _FLAGS_OF_PLANS.items():
        message = re.sub(rf"(?<![\w-]){word}(?!\w)", flag, message)
    message = re.sub(r"\((\d+(?:, \d+)+)\)", lambda found: found[1].replace(", ", ","), message)
    counted = r"(?<![\w-])(parts|times|balance|precision)(?= \d| is\b| lists\b)"
    return re.sub(counted, r"--\1", message)


class Parser(argparse.ArgumentParser):
    """Raises its errors, so that one rank can speak for all of them."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^:]+):(?= is )", r"\1", message)
        message = re.sub(r"^argument ([^:]+):", r"\1:", message)
        raise UsageError(f"{message}{self._meant(message)} (--help shows all flags)")

    def _meant(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = get_close_matches(unknown[1], flags, n=1) if unknown else []
        return f"; did you mean {near[0]}?" if near else ""


class Help(argparse.RawDescriptionHelpFormatter):
    """Examples as they stand, and every default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        shown = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
        return text if shown or "default:" in text else f"{text} (default: %(default)s)"


def add_flags(parser: argparse.ArgumentParser, kind: Kind) -> None:
    """All of them are there for every kind, as they were; which have an effect, the help says."""
    _original(parser)
    _data(parser)
    _ours(parser, kind)


def _original(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is trained on which ranks").add_argument
    count, length = integer(1), integer(0)
    add("-v", "--verbose", action="store_true", help="a line for every step")
    add("--batch-size", type=count, default=32, help="images of a batch")
    add("--parts", type=count, default=1, help="micro-batches of a batch")
    add("--split-size", type=count, default=2, help="stages into which the model is cut")
    add(
        "--num-spatial-parts",
        default="4",
        help="parts into which spatial stages cut the image: one number, or a list such as 4,2",
    )
    add("--spatial-size", type=length, default=1, help="how many stages are spatial: the first")
    add(
        "--times",
        type=count,
        default=1,
        help="GEMS: batches of a step, in alternating directions; effective batch: times × batch",
    )
    add("--image-size", type=count, default=32, help="height and width of the images")
    add("--num-epochs", type=count, default=1, help="how often all images are seen")
    add("--num-layers", type=count, default=18, help="normal cells of AmoebaNet")
    add("--num-filters", type=count, default=416, help="filters of AmoebaNet")
    add("--num-classes", type=count, default=10, help="classes")
    add("--balance", help="layers of each stage, such as 10,14 (default: computed)")
    add("--halo-D2", action="store_true", help="fetch the halos of several layers at once")
    add("--fused-layers", type=count, default=1, help="of how many, with --halo-D2")
    add("--local-DP", type=count, default=1, help="ranks that share the batch of a whole stage")
    add("--slice-method", default="square", help="square, vertical, horizontal, or a grid: 2x3")
    comm_opt = "GEMS: mirrored ranks exchange gradients point to point"
    add("--enable-master-comm-opt", action="store_true", help=comm_opt)


def _data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("images").add_argument
    add(
        "--app",
        type=int,
        choices=(1, 2, 3),
        default=3,
        help="1: medical images, a folder for each class; 2: CIFAR-10; 3: synthetic",
    )
    add("--datapath", default="./train", help="where images are, for --app 1 and 2")
    add("--num-workers", type=integer(0), default=0, help="threads that read files, for --app 1")


def _ours(parser: argparse.ArgumentParser, kind: Kind) -> None:
    add = parser.add_argument_group("beyond the original").add_argument
    add("--schedule", help=f"one of {', '.join(SCHEDULES)} (default: {kind.schedule})")
    add("--backend", help="of torch.distributed, such as gloo (default: what fits)")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="autocast")
    add(
        "--checkpoint-activations",
        type=integer(0),
        nargs="?",
        const=1,
        default=0,
        metavar="LAYERS",
        help="compute activations again in backward, so many layers at once (1 if none is said)",
    )
    add("--steps", type=integer(1), help="steps of an epoch (default: all images; synthetic: 10)")
    add("--warmup", type=integer(0), default=1, help="steps before those that are measured")
    add("--lr", type=_rate, default=0.001, help="learning rate of SGD")
    add("--seed", type=integer(0), default=0, help="of weights, images and their order")
    add("--json", metavar="FILE", help="the report as data")
    add("--device", help="cpu, cuda or cuda:1 (default: GPUs if there are any, with nccl)")


def integer(least: int) -> Callable[[str], int]:
    """For `type=`: reads whole numbers, none smaller."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", text):
            raise argparse.ArgumentTypeError(f"is {text!r}; it must be an integer")
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"is {int(text)}; it must be at least {least}")
        return int(text)

    return read


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be a number, 0 or more")
    return rate
