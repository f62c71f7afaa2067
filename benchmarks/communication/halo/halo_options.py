"""The command line that the halo benchmarks share. What cannot be run is refused before any start.

A refusal is one message, on rank 0 if a launcher started several, and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from mpi4dl import Layout, Mpi4dlError
from mpi4dl.comm.launchers import started_by

FP16_MESSAGES = "send the halo's pixels as float16 and widen them on arrival: half the bytes"
FP16_GRADIENTS = "sum the layer's gradients over the ranks as float16; its halos stay float32"


class Parser(argparse.ArgumentParser):
    """One line for each error: the usage is for those who ask with --help."""

    def error(self, message: str) -> NoReturn:
        refuse(message, self.prog)


def refuse(message: str, program: str = "") -> NoReturn:
    """End with code 2; several ranks say it once."""
    try:
        started = started_by(os.environ)
    except Mpi4dlError as error:
        started, message = None, str(error)
    if started is None or started.rank == 0:
        print(f"{program or Path(sys.argv[0]).name}: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def image_size(text: str) -> tuple[int, int]:
    """`1024`, or `768x1024` for height and width."""
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a size nor a height x width")
    sizes = [int(n) for n in text.split("x")]
    return sizes[0], sizes[-1]


def common_parser(description: str | None, fp16: str = FP16_MESSAGES) -> Parser:
    parser = Parser(
        description=description, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )

    def number(flag: str, default: int, text: str) -> None:
        parser.add_argument(flag, type=int, default=default, help=f"{text} (default: {default})")

    parser.add_argument("--fp16-allreduce", action="store_true", help=fp16)
    number("--batch-size", 1, "images")
    number("--in-channels", 1, "channels of the image")
    number("--out-channels", 256, "channels that a convolution makes of them")
    number("--warmup", 10, "iterations before the first that counts")
    number("--iterations", 100, "iterations that count")
    number("--num-spatial-parts", 4, "tiles, which is the number of ranks")
    number("--threads", 1, "threads that each rank computes with")
    parser.add_argument("--backend", help="of torch.distributed (default: what mpi4dl.init finds)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    return parser


def benchmark_parser(description: str | None, fp16: str = FP16_MESSAGES) -> Parser:
    """The common flags, and those of a single configuration."""
    parser = common_parser(description, fp16)
    parser.add_argument(
        "--image-size",
        type=image_size,
        default=(8, 8),
        metavar="SIZE",
        help="side of the whole image, or height x width, such as 768x1024 (default: 8)",
    )
    parser.add_argument(
        "--halo-len",
        type=int,
        default=1,
        help="pixels beyond each border of a tile; convolutions have the kernel 2 * halo + 1\n"
        "(default: 1)",
    )
    parser.add_argument(
        "--slice-method",
        default="square",
        help="square, vertical, horizontal or rows x columns, such as 2x3 (default: square)",
    )
    return parser


def parsed(parser: Parser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked as far as a single configuration does not matter."""
    options = parser.parse_args(arguments)
    smallest = {
        **dict.fromkeys(("batch_size", "in_channels", "out_channels", "iterations"), 1),
        **dict.fromkeys(("num_spatial_parts", "threads"), 1),
        "warmup": 0,
    }
    for name, least in smallest.items():
        if getattr(options, name) < least:
            flag = "--" + name.replace("_", "-")
            refuse(f"{flag} is {getattr(options, name)}; it must be at least {least}")
    for path in (options.json, getattr(options, "picture", None)):
        if path is not None and not path.absolute().parent.is_dir():
            refuse(f"there is no folder {path.parent} to write {path.name} to")
    options.device = _device(options.device)
    if options.backend is not None and not dist.is_backend_available(options.backend):
        known = [name for name in dist.Backend.backend_list if dist.is_backend_available(name)]
        refuse(f"there is no backend {options.backend!r} here: use one of {', '.join(known)}")
    check_ranks(options.num_spatial_parts)
    return options


def _device(asked: str | None) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        refuse("--device is cuda, and PyTorch finds no GPU here: use --device cpu")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def check_ranks(parts: int) -> None:
    """A launcher that is there must have started one rank for each tile."""
    try:
        started = started_by(os.environ)
    except Mpi4dlError as error:
        refuse(str(error))
    if started is not None and started.size != parts:
        refuse(
            f"--num-spatial-parts is {parts}, and {started.launcher.name} started {started.size} "
            f"ranks: start {parts}, or ask for {started.size} parts"
        )


def layout_for(options: Any) -> Layout:
    """Which rank has which tile of a configuration that makes sense; any other is refused."""
    if options.halo_len < 0:
        refuse(f"--halo-len is {options.halo_len}; it must be at least 0")
    height, width = options.image_size
    if min(height, width) < 1:
        refuse(f"--image-size is {height} x {width}; an image has at least one pixel")
    try:
        layout = Layout.sliced((height, width), options.num_spatial_parts, options.slice_method)
    except Mpi4dlError as error:
        refuse(f"--slice-method: {error}")
    without = sum(box.empty for box in layout.boxes)
    if without:
        refuse(
            f"an image of {height} x {width} pixels is too small for {options.num_spatial_parts} "
            f"tiles ({options.slice_method}), of which {without} would hold no pixel: use a larger "
            "--image-size, or fewer --num-spatial-parts"
        )
    return layout
