"""What the halo benchmarks share: starting ranks, measuring, and telling what was measured.

An iteration begins when all ranks are there, and takes as long as it takes the slowest of them.
`back to back` is the mean time of iterations that nobody waits between, as in a training step.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from halo_exchange import Counted
from halo_options import Parser, layout_for, parsed
from halo_work import Turn, Work

import mpi4dl
from mpi4dl import Layout
from mpi4dl.comm.communicator import Communicator
from mpi4dl.comm.neighbours import NeighbourCommunicator

Check = Callable[[Any, Layout, Communicator], Any]


@dataclass(frozen=True)
class Result:
    """One measured thing. Lists of counts have one entry for each rank."""

    name: str
    times: list[float]  # milliseconds, of the slowest rank
    back_to_back: float | None  # of whole turns only
    messages: list[int]
    received: list[int]  # bytes
    reduced: int  # bytes that were summed over ranks

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def bandwidth(self) -> list[float]:
        """Megabytes a second that arrive at each rank, at the median time."""
        return [size / self.median / 1e3 for size in self.received]

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "mean_ms": statistics.fmean(self.times),
            "median_ms": self.median,
            "p95_ms": percentile(self.times, 0.95),
            "min_ms": min(self.times),
            "back_to_back_ms": self.back_to_back,
            "messages": self.messages,
            "received_bytes": self.received,
            "bandwidth_mb_per_s": self.bandwidth,
            "summed_bytes": self.reduced,
            "times_ms": self.times,
        }

    def __str__(self) -> str:
        found = self.record()
        times = [found[key] for key in ("mean_ms", "median_ms", "p95_ms", "min_ms")]
        if self.back_to_back is not None:
            times.append(self.back_to_back)
        cells = "".join(f"{t:11.3f}" for t in times).ljust(55)
        busiest = max(self.received)
        if not busiest:
            return f"{self.name:24s}{cells}{0:9d}"
        rate = max(self.bandwidth)
        return f"{self.name:24s}{cells}{max(self.messages):9d}{busiest / 1024:11.1f}{rate:9.0f}"


HEADER = (
    f"{'milliseconds':24s}{'mean':>11s}{'median':>11s}{'p95':>11s}{'min':>11s}{'back2back':>11s}"
    f"{'messages':>9s}{'KiB':>11s}{'MB/s':>9s}"
)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def main(parser: Parser, work: Work, check: Check | None = None) -> None:
    """A whole script: read the command line, start, validate if asked to, measure, report."""
    options = parsed(parser)
    layout = layout_for(options)
    comm = start(options)
    verdict = None
    if check is not None:
        verdict = check(options, layout, comm)
        if comm.rank == 0:
            print(verdict, flush=True)
        if not verdict.passed:
            sys.exit(1)
    results = measure(work, options, layout, comm)
    if comm.rank == 0:
        report(options, layout, comm, results)
        if options.json:
            found = record(options, comm, results)
            found["validation"] = None if verdict is None else vars(verdict)
            options.json.write_text(json.dumps(found, indent=1))


def start(options: Any) -> Communicator:
    """The ranks of a launcher; without one this program starts them, and does not return here."""
    torch.set_num_threads(options.threads)
    backend = options.backend or os.environ.get("MPI4DL_BACKEND")
    if backend is None and options.device == "cpu" and torch.cuda.is_available():
        backend = "gloo"  # init would choose NCCL, which moves nothing between CPUs
    comm = mpi4dl.init(backend, options.num_spatial_parts)
    if options.device == "cuda":
        torch.cuda.set_device(comm.rank % torch.cuda.device_count())
    return comm


def measure(work: Work, options: Any, layout: Layout, comm: Communicator) -> list[Result]:
    """Collective. Turns alternate, so that what disturbs the machine disturbs all of them."""
    counts = _counts(work, options, layout, comm)
    turns = work(options, layout, comm)
    times = _times(turns, options, comm)
    streams = [_back_to_back(turn, options, comm) for turn in turns]
    results = []
    for turn, stream in zip(turns, streams, strict=True):
        for name in _rows(turn):
            messages, received, reduced = counts[name]
            whole = len(turn) == 1 or name == "together"
            results.append(
                Result(
                    name, times[name], stream if whole else None, messages, received, max(reduced)
                )
            )
    return results


def _rows(turn: Turn) -> list[str]:
    """The phases, and if there are several, all of them together."""
    names = [name for name, _ in turn]
    return names if len(names) == 1 else [*names, "together"]


def _counts(
    work: Work, options: Any, layout: Layout, comm: Communicator
) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """Messages, bytes received and bytes summed of each row, by rank: from an iteration untimed."""
    counted = Counted(comm)
    found: dict[str, list[int]] = {}
    for turn in work(options, layout, counted):
        # Once before, since some things are sent only by the first call.
        for _, call in turn:
            call()
        marks = [counted.counts()]
        for _, call in turn:
            call()
            marks.append(counted.counts())
        spans = [*pairwise(marks), (marks[0], marks[-1])]
        for name, (before, after) in zip(_rows(turn), spans, strict=False):
            found[name] = [b - a for a, b in zip(before, after, strict=True)]
    table = torch.tensor(list(found.values()), device=options.device)
    by_rank = comm.all_gather(table).permute(1, 2, 0).tolist()
    return {name: tuple(counts) for name, counts in zip(found, by_rank, strict=True)}


def _times(turns: Sequence[Turn], options: Any, comm: Communicator) -> dict[str, list[float]]:
    own: dict[str, list[float]] = {name: [] for turn in turns for name in _rows(turn)}
    for iteration in range(options.warmup + options.iterations):
        for turn in turns:
            meet(options, comm)
            marks = [now(options)]
            for _, call in turn:
                call()
                marks.append(now(options))
            if iteration >= options.warmup:
                spans = [*pairwise(marks), (marks[0], marks[-1])]
                for name, (begun, ended) in zip(_rows(turn), spans, strict=False):
                    own[name].append((ended - begun) * 1e3)
    table = torch.tensor(list(own.values()), dtype=torch.float64, device=options.device)
    slowest = comm.all_gather(table).amax(0).tolist()
    return dict(zip(own, slowest, strict=True))


def _back_to_back(turn: Turn, options: Any, comm: Communicator) -> float:
    meet(options, comm)
    begun = now(options)
    for _ in range(options.iterations):
        for _, call in turn:
            call()
    took = torch.tensor([(now(options) - begun) * 1e3], device=options.device)
    return float(comm.all_gather(took).max()) / options.iterations


def meet(options: Any, comm: Communicator) -> None:
    """Everybody is there, and nothing of before is still under way."""
    comm.all_reduce(torch.zeros(1, device=options.device))


def now(options: Any) -> float:
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(options: Any, layout: Layout, comm: Communicator, results: Sequence[Result]) -> None:
    shape = "x".join(map(str, (options.batch_size, options.in_channels, *layout.size)))
    print(
        f"image {shape}, float32{', float16 between ranks' * options.fp16_allreduce}; "
        f"{layout.ranks} tiles, {options.slice_method}; halo {options.halo_len}; "
        f"{options.device}, {transport(comm)}; {options.iterations} iterations"
    )
    print(HEADER)
    for result in results:
        print(result)
    summed = max(result.reduced for result in results)
    if summed:
        print(f"gradients: {summed / 1024:.1f} KiB summed over the ranks")
    print("messages, KiB and MB/s: received by the rank that receives most, in a median time")


def transport(comm: Communicator) -> str:
    backend = dist.get_backend() if dist.is_initialized() else "one process"
    return f"{backend}{' and shared memory' * isinstance(comm, NeighbourCommunicator)}"


def record(options: Any, comm: Communicator, results: Sequence[Result]) -> dict[str, Any]:
    """Everything to know about a run, for --json."""
    shown = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    return {
        "benchmark": Path(sys.argv[0]).stem,
        **shown,
        "ranks": comm.size,
        "transport": transport(comm),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "results": [result.record() for result in results],
    }
