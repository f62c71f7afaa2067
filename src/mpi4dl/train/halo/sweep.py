"""The halo exchange over image sizes, halo lengths and slice methods."""

from __future__ import annotations

import argparse
import importlib.util
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import product

from ...comm.communicator import Communicator
from ...errors import UsageError
from ...geometry import Layout
from ..arguments import integer
from ..surroundings import check_output
from .curves import draw
from .measure import measure
from .options import add_common, image_size, layout_for
from .result import HEADER, record, transport, write
from .work import exchange

Configuration = tuple[Namespace, Layout]


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    add = parser.add_argument
    sizes = [(n, n) for n in (64, 256, 1024)]
    add(
        "--image-sizes",
        type=image_size,
        nargs="+",
        default=sizes,
        metavar="SIZE",
        help="(default: 64 256 1024)",
    )
    add("--halo-lens", type=integer(0), nargs="+", default=[1, 3], help="(default: 1 3)")
    methods = ["square", "vertical", "horizontal"]
    add("--slice-methods", nargs="+", default=methods, help="(default: all three)")
    add("--picture", metavar="PNG", help="needs mpi4dl[plot]")


def configurations(options: Namespace) -> Iterator[Configuration]:
    """Every one, checked."""
    for method, halo, size in product(
        options.slice_methods, options.halo_lens, options.image_sizes
    ):
        one = Namespace(
            **vars(options),
            image_size=size,
            halo_len=halo,
            slice_method=method,
            backward=False,
            with_tile=False,
        )
        yield one, layout_for(one)


def prepare(options: Namespace) -> partial[int]:
    """What is to be done with a communicator. Mistakes are found before hours are spent."""
    check_output("--picture", options.picture)
    if options.picture and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--picture needs matplotlib: pip install 'mpi4dl[plot]'")
    return partial(_swept, options, list(configurations(options)))


def _swept(options: Namespace, chosen: list[Configuration], comm: Communicator) -> int:
    runs = []
    if comm.rank == 0:
        print(f"{options.num_spatial_parts} ranks, {transport(comm)}")
        print(f"{'slices':>10s}{'halo':>5s}{'image':>12s}  {HEADER}")
    for one, layout in chosen:
        results = measure(exchange, one, layout, comm)
        runs.append(record("sweep", one, comm, results))
        if comm.rank == 0:
            size = "x".join(map(str, one.image_size))
            print(f"{one.slice_method:>10s}{one.halo_len:5d}{size:>12s}  {results[0]}", flush=True)
    if comm.rank == 0:
        if options.json:
            write(options.json, runs)
        if options.picture:
            draw(runs, options.picture)
    return 0
