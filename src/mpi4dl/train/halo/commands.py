"""`halo`: what the scripts under benchmarks/communication/halo and `mpi4dl bench halo` are."""

from __future__ import annotations

import argparse
import textwrap
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ...comm.communicator import Communicator
from ...comm.launch import init
from ...comm.launchers import Started
from ...geometry import Layout
from ..arguments import Help, Parser
from ..command import STARTING, carried_out, parsed, start_ranks, words_of
from ..surroundings import backend_of
from .measure import measure
from .options import FP16_GRADIENTS, add_single, check, layout_for
from .result import record, report, write
from .sweep import add_flags as add_sweep_flags
from .sweep import prepare as prepare_sweep
from .validation import validate
from .work import Work, compute, exchange, layer

Prepare = Callable[[Namespace], Callable[[Communicator], int]]
"""Makes what the ranks do of options that make sense; of others, an error."""


@dataclass(frozen=True)
class Benchmark:
    script: str
    """Its name under benchmarks/communication/halo, and in what it writes."""
    title: str
    about: str
    example: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    prepare: Prepare


def halo(name: str, arguments: Sequence[str] | None = None, program: str | None = None) -> int:
    """Measure; returns the exit code. `arguments` are those of this process if none are given, and
    `program` its name in help."""
    benchmark = HALO[name]
    words, program = words_of(arguments, program)
    parser = halo_flags(benchmark, Parser(prog=program))

    def decide(started: Started | None) -> Callable[[], int]:
        options = parsed(parser, words, started)
        check(options, started)
        work = benchmark.prepare(options)
        if started is None and options.num_spatial_parts > 1:
            return partial(start_ranks, options.num_spatial_parts, ["halo", name, *words])
        return lambda: work(_rank(options))

    return carried_out(decide)


def halo_flags(benchmark: Benchmark, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser of a benchmark, made of one that has a name."""
    parser.description = textwrap.fill(benchmark.about, 88)
    parser.formatter_class = Help
    parser.epilog = f"example:\n  {parser.prog} {benchmark.example}\n\n{STARTING}"
    benchmark.add_flags(parser)
    return parser


def _rank(options: Namespace) -> Communicator:
    torch.set_num_threads(options.threads)
    comm = init(backend_of(options), ranks=1)
    if options.device == "cuda":
        torch.cuda.set_device(comm.rank % torch.cuda.device_count())
    return comm


# ── one configuration ────────────────────────────────────────────────────────────────────────────


def _single(work: Work, validated: bool, script: str) -> Prepare:
    def prepare(options: Namespace) -> Callable[[Communicator], int]:
        return partial(_measured, work, validated, script, options, layout_for(options))

    return prepare


def _measured(
    work: Work,
    validated: bool,
    script: str,
    options: Namespace,
    layout: Layout,
    comm: Communicator,
) -> int:
    """Validate if that is asked for, measure, report. Wrong results are not measured."""
    verdict = validate(options, layout, comm) if validated else None
    if verdict is not None:
        if comm.rank == 0:
            print(verdict, flush=True)
        if not verdict.passed:
            return 1
    results = measure(work, options, layout, comm)
    if comm.rank == 0:
        report(options, layout, comm, results)
        if options.json:
            found = record(script, options, comm, results)
            found["validation"] = None if verdict is None else vars(verdict)
            write(options.json, found)
    return 0


def _add_exchange(parser: argparse.ArgumentParser) -> None:
    add_single(parser)
    back = "also the halo's gradients, on their way home"
    parser.add_argument("--backward", action="store_true", help=back)
    tile = "also the halo into one tensor with the tile, as FusedHalo holds it: a copy of the tile"
    parser.add_argument("--with-tile", action="store_true", help=tile)


def _benchmark(
    script: str,
    title: str,
    about: str,
    example: str,
    work: Work,
    *,
    add_flags: Callable[[argparse.ArgumentParser], None] = add_single,
    validated: bool = False,
) -> Benchmark:
    return Benchmark(script, title, about, example, add_flags, _single(work, validated, script))


HALO = {
    "exchange": _benchmark(
        "benchmark_sp_halo_exchange",
        "the halo exchange alone",
        "The halo exchange alone: every tile fetches its neighbours' pixels, and nothing is "
        "computed.",
        "--image-size 1024 --in-channels 64 --slice-method vertical",
        exchange,
        add_flags=_add_exchange,
    ),
    "compute": _benchmark(
        "benchmark_sp_halo_exchange_with_compute",
        "the exchange while the tile is convolved",
        "The halo exchange while the tile is convolved, beside the exchange and the convolution "
        "alone. The convolution is that of nn.Conv2d on a tile: the halo is sent, the tile alone "
        "is convolved, and what the halo adds is added when it is there.",
        "--image-size 512 --in-channels 64 --out-channels 64",
        compute,
    ),
    "validate": _benchmark(
        "benchmark_sp_halo_exchange_with_compute_val",
        "the same, once its results are found to be right",
        "The same as compute, once the results are found to be right: every rank compares the "
        "pixels that it received with those of the image, bit for bit; rank 0 convolves the whole "
        "image alone, in float64, and compares what all ranks computed. If anything differs, the "
        "exit code is 1 and nothing is measured.",
        "--image-size 512 --in-channels 16 --halo-len 3",
        compute,
        validated=True,
    ),
    "conv": _benchmark(
        "benchmark_sp_halo_exchange_conv",
        "a convolution layer on tiles, as training calls it",
        "A convolution layer on tiles, as training calls it: nn.Conv2d forward and backward, halos "
        "included, and the sum of its gradients over the ranks.",
        "--image-size 512 --in-channels 16",
        layer,
        add_flags=partial(add_single, fp16=FP16_GRADIENTS),
    ),
    "sweep": Benchmark(
        "sweep",
        "the exchange over sizes, halos and slice methods, as curves",
        "The halo exchange over image sizes, halo lengths and slice methods, as curves. All "
        "configurations run in one start of the ranks. Lines are medians, dotted ones the fastest "
        "iterations. Bandwidth is that of the rank that receives most.",
        "--in-channels 64 --image-sizes 64 256 1024 --picture halo.png",
        add_sweep_flags,
        prepare_sweep,
    ),
}
"""By the word after `mpi4dl bench halo`."""
