"""What was measured, and how it is shown."""

from __future__ import annotations

import json
import math
import os
import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...comm.communicator import Communicator
from ...comm.neighbours import NeighbourCommunicator
from ...geometry import Layout


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


def report(options: Namespace, layout: Layout, comm: Communicator, found: Sequence[Result]) -> None:
    shape = "x".join(map(str, (options.batch_size, options.in_channels, *layout.size)))
    print(
        f"image {shape}, float32{', float16 between ranks' * options.fp16_allreduce}; "
        f"{layout.ranks} tiles, {options.slice_method}; halo {options.halo_len}; "
        f"{options.device}, {transport(comm)}; {options.iterations} iterations"
    )
    print(HEADER)
    for result in found:
        print(result)
    summed = max(result.reduced for result in found)
    if summed:
        print(f"gradients: {summed / 1024:.1f} KiB summed over the ranks")
    print("messages, KiB and MB/s: received by the rank that receives most, in a median time")


def transport(comm: Communicator) -> str:
    backend = dist.get_backend() if dist.is_initialized() else "one process"
    return f"{backend}{' and shared memory' * isinstance(comm, NeighbourCommunicator)}"


def record(
    script: str, options: Namespace, comm: Communicator, found: Sequence[Result]
) -> dict[str, Any]:
    """Everything to know about a run, for --json."""
    return {
        "benchmark": script,
        **vars(options),
        "ranks": comm.size,
        "transport": transport(comm),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "results": [result.record() for result in found],
    }


def write(file: str, data: Any) -> None:
    Path(file).write_text(json.dumps(data, indent=1), encoding="utf-8")
