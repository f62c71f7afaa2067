"""One training step of a pipeline: mpi4dl against torch.distributed.pipelining, in one run.

    torchrun --nproc-per-node 2 benchmarks/pipeline_step/run.py
    torchrun --nproc-per-node 4 benchmarks/pipeline_step/run.py --parts 8

Both have the same model, stages, micro-batches, loss and optimizer, and one thread a rank; they
take turns, round by round, and so does one process that trains the same micro-batches alone.
PyTorch talks over Gloo; mpi4dl over what `mpi4dl.init` finds (MPI4DL_SHARED_MEMORY=0: Gloo).
The losses of all must agree, or there is no table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from modes import MODELS, PEERS, Case, Step, alone, ours, theirs

import mpi4dl
from mpi4dl.comm.communicator import Communicator

Times = dict[str, list[float]]


def modes(case: Case, schedules: list[str], comm: Communicator) -> dict[str, Step]:
    made: dict[str, Callable[[], Step]] = {"one process": partial(alone, case)}
    for schedule in schedules:
        made[f"mpi4dl {schedule}"] = partial(ours, case, schedule)
        made[f"torch {schedule}"] = partial(theirs, case, schedule)
    return {
        mode: make() if comm.rank == 0 or mode != "one process" else _nothing
        for mode, make in made.items()
    }


def _nothing() -> None:
    return None


def measure(table: dict[str, Step], rounds: int, comm: Communicator) -> tuple[Times, Times]:
    """Seconds of every step, and the losses that this rank knows."""
    times: Times = {mode: [] for mode in table}
    losses: Times = {mode: [] for mode in table}
    for turn in range(rounds + 2):
        # Each mode after each other one, in turn: what one leaves in the caches meets all.
        for mode in _turned(list(table), turn):
            comm.all_reduce(torch.zeros(1))
            started = time.perf_counter()
            loss = table[mode]()
            comm.all_reduce(torch.zeros(1))
            if turn >= 2:  # the first rounds warm up
                times[mode].append(time.perf_counter() - started)
            losses[mode].append(float("-inf") if loss is None else loss.item())
    return times, losses


def _turned(modes: list[str], turn: int) -> list[str]:
    start = turn % len(modes)
    return modes[start:] + modes[:start]


def check(losses: Times, comm: Communicator) -> None:
    """All of them have trained the same: step by step, the loss is that of one process."""
    known = torch.tensor(list(losses.values()))
    comm.all_reduce(known, "max")  # each mode's loss from whoever has its last stage
    for mode, got in zip(losses, known, strict=True):
        torch.testing.assert_close(got, known[0], rtol=1e-3, atol=1e-4, msg=partial(_of, mode))


def _of(mode: str, message: str) -> str:
    return f"{mode} does not train what one process trains: {message}"


def show(case: Case, schedules: list[str], times: Times) -> dict[str, float]:
    medians = {mode: statistics.median(values) for mode, values in times.items()}
    one = medians["one process"]
    print(
        f"{case.model}, {case.ranks} ranks, {case.parts} micro-batches of {case.samples} × "
        f"{case.size}², float32, {len(times['one process'])} rounds; one process {one:.3f} s\n"
        "schedule      mpi4dl s   torch s  mpi4dl / torch        by rounds    best  one / mpi4dl"
    )
    for schedule in schedules:
        ours, torchs = (times[f"{whose} {schedule}"] for whose in ("mpi4dl", "torch"))
        a, b = statistics.median(ours), statistics.median(torchs)
        # The same round, side by side: what disturbs the machine disturbs both.
        pairs = [x / y for x, y in zip(ours, torchs, strict=True)]
        low, middle, high = statistics.quantiles(pairs)
        spread = f"{middle:.3f} ({low:.3f}-{high:.3f})"
        best = min(ours) / min(torchs)
        print(f"{schedule:12s} {a:9.3f} {b:9.3f} {a / b:11.3f}   {spread:>19s} {best:7.3f}", end="")
        print(f" {one / a:14.2f}")
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", choices=MODELS, default="resnet29")
    parser.add_argument("--size", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--samples", type=int, default=2, help="of a micro-batch")
    parser.add_argument("--parts", type=int, default=8, help="micro-batches")
    parser.add_argument("--schedules", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    comm = mpi4dl.init()
    case = Case(options.model, comm.size, options.parts, options.samples, options.size)
    times, losses = measure(modes(case, options.schedules, comm), options.rounds, comm)
    check(losses, comm)
    if comm.rank == 0:
        medians = show(case, options.schedules, times)
        if options.json:
            record = {"command": vars(options), "ranks": comm.size, "times": times}
            options.json.write_text(json.dumps(record | {"medians": medians}, default=str))


main()
