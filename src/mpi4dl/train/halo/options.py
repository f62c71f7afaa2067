"""The flags that the halo benchmarks share, and the layout that they come to."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from math import prod

import torch

from ...comm.launchers import Started
from ...errors import Mpi4dlError, UsageError
from ...geometry import Layout
from ..arguments import integer
from ..surroundings import check_surroundings

FP16_MESSAGES = "send the halo's pixels as float16 and widen them on arrival: half the bytes"
FP16_GRADIENTS = "sum the layer's gradients over the ranks as float16; its halos stay float32"


def image_size(text: str) -> tuple[int, int]:
    """`1024`, or `768x1024` for height and width."""
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise argparse.ArgumentTypeError(f"is {text!r}, neither a size nor a height x width")
    height, *rest = (int(n) for n in text.split("x"))
    return height, rest[0] if rest else height


def add_common(parser: argparse.ArgumentParser, fp16: str = FP16_MESSAGES) -> None:
    add, count = parser.add_argument, integer(1)
    add("--fp16-allreduce", action="store_true", help=fp16)
    add("--batch-size", type=count, default=1, help="images")
    add("--in-channels", type=count, default=1, help="channels of the image")
    add("--out-channels", type=count, default=256, help="channels that a convolution makes of them")
    add("--warmup", type=integer(0), default=10, help="iterations before the first that counts")
    add("--iterations", type=count, default=100, help="iterations that count")
    add("--num-spatial-parts", type=count, default=4, help="tiles, which is the number of ranks")
    add("--threads", type=count, default=1, help="threads that each rank computes with")
    add("--backend", help="of torch.distributed, such as gloo (default: what fits)")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    add("--json", metavar="FILE", help="write what was measured")


def add_single(parser: argparse.ArgumentParser, fp16: str = FP16_MESSAGES) -> None:
    """The common flags, and those of a single configuration."""
    add_common(parser, fp16)
    add = parser.add_argument
    add(
        "--image-size",
        type=image_size,
        default=(8, 8),
        metavar="SIZE",
        help="side of the whole image, or height x width, such as 768x1024 (default: 8)",
    )
    kernel = "pixels beyond each border of a tile; convolutions have the kernel 2 * halo + 1"
    add("--halo-len", type=integer(0), default=1, help=kernel)
    methods = "square, vertical, horizontal or rows x columns, such as 2x3"
    add("--slice-method", default="square", help=methods)


def check(options: Namespace, started: Started | None) -> None:
    """What does not depend on a single configuration. Decides on a device."""
    parts = options.num_spatial_parts
    check_surroundings(options, started, parts)
    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if started is not None and started.size != parts:
        raise UsageError(
            f"--num-spatial-parts is {parts}, and {started.launcher.name} started {started.size} "
            f"ranks: start {parts}, or ask for {started.size} parts"
        )


def layout_for(options: Namespace) -> Layout:
    """Which rank has which tile of a configuration that makes sense; any other is an error."""
    height, width = options.image_size
    if min(height, width) < 1:
        raise UsageError(f"--image-size is {height}x{width}; an image has at least one pixel")
    try:
        layout = Layout.sliced((height, width), options.num_spatial_parts, options.slice_method)
    except Mpi4dlError as error:
        counts = re.findall(r"\d+", options.slice_method)
        more = f"; use --num-spatial-parts {prod(map(int, counts))}" * (len(counts) == 2)
        raise UsageError(f"--slice-method: {error}{more}") from error
    without = sum(box.empty for box in layout.boxes)
    if without:
        raise UsageError(
            f"an image of {height} x {width} pixels is too small for {options.num_spatial_parts} "
            f"tiles ({options.slice_method}), of which {without} would hold no pixel: use a larger "
            "--image-size, or fewer --num-spatial-parts"
        )
    return layout
