"""One training step on tiles, against one process and against floors, in one run.

    torchrun --nproc-per-node 2 benchmarks/spatial_step/run.py --model all --size 512 1024

Modes, interleaved round by round (one thread a rank unless it says otherwise):

    (a) one process, 1 thread    the whole image, plain PyTorch
    (b) one process, 2 threads   the same
    (c) tiles                    each rank with its part of the rows: mpi4dl
    (f) tiles, fused             the same, every layer of the model (a residual block, a cell) in
                                 one mpi4dl.FusedHalo
    (d) sync floor               plain PyTorch on a part of the image, with 4-byte messages at the
                                 places where tiles talk, and as many; no halos, wrong results
    (e) no communication         plain PyTorch on a part of the image

The floor takes its messages from those of a step of tiles, and the run ends if it sends fewer or
more. Peak memory is that of a process that runs one mode and nothing else, above its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from floor import Meter, Note, Token, gradient_syncs, tally, with_syncs
from profile_table import profile_table
from torch import Tensor, nn

import mpi4dl
from mpi4dl.comm.communicator import Communicator, use
from mpi4dl.models import amoebanet_d, resnet50

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: resnet50(num_classes=10),
    "amoebanet": lambda: amoebanet_d(6, 64, num_classes=10),
}
ONE, TWO, TILES, FUSED, FLOOR, SILENT = (
    *("one process, 1 thread", "one process, 2 threads", "tiles", "tiles, fused"),
    *("sync floor", "no communication"),
)
BARS = {(TILES, FLOOR): 1.03, (TILES, SILENT): 1.15, (TILES, TWO): 1.0, (FUSED, TILES): 1.0}
MEMORY_BAR = 0.58


def train_step(
    model: nn.Module, x: Tensor, meter: Meter, finish: Callable[[], object] | None = None
) -> None:
    meter.phase = "forward"
    loss = F.cross_entropy(model(x), torch.tensor([3]))
    meter.phase = "backward"
    loss.backward()
    meter.phase = "gradients"
    if finish is not None:
        finish()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-1e-3)
                parameter.grad = None


class Case:
    """A model at a size. Models are made when a mode first runs: others are not in memory then."""

    def __init__(self, name: str, size: int, comm: Communicator) -> None:
        self.name, self.size, self.comm = name, size, comm
        self.meter = Meter(comm)
        self.layout = mpi4dl.Layout.horizontal((size, size), comm.size)
        self.rows = self.layout.boxes[comm.rank][0].size
        self.notes: dict[str, list[Note]] = {}

    @cache  # noqa: B019 - as long as the case
    def model(self, mode: str) -> nn.Module:
        torch.manual_seed(0)
        made = MODELS[self.name]()
        if mode == FUSED:
            return nn.Sequential(*map(mpi4dl.FusedHalo, made.children()))
        if mode == FLOOR:
            return with_syncs(made, self.notes[TILES], self.meter)
        return made

    @cache  # noqa: B019
    def image(self, mode: str) -> Tensor:
        alone = mode in (ONE, TWO)
        x = torch.randn(1, 3, self.size if alone else self.rows, self.size)
        if mode not in (TILES, FUSED):
            return x
        with use(self.meter):
            return mpi4dl.Tile.from_local(x, self.layout)

    def step(self, mode: str) -> None:
        model, x = self.model(mode), self.image(mode)
        finish: Callable[[], object] | None = None
        if mode in (TILES, FUSED):
            finish = partial(mpi4dl.sync_gradients, model, self.meter)
        if mode == FLOOR:
            finish = partial(gradient_syncs, self.notes[TILES], self.meter)
        torch.set_num_threads(2 if mode == TWO else 1)
        train_step(model, x, self.meter, finish)
        torch.set_num_threads(1)

    def takes_part(self, mode: str) -> bool:
        return mode not in (ONE, TWO) or self.comm.rank == 0

    def count(self, mode: str) -> None:
        """Warm up, and note the messages of a step."""
        self.step(mode)
        with self.meter.watch(self.model(mode)) as notes:
            self.step(mode)
        self.notes[mode] = notes


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    token = Token(case.comm)
    for mode in (TILES, FUSED, FLOOR, SILENT):
        case.count(mode)
    if tally(case.notes[TILES]) != tally(case.notes[FLOOR]):
        raise SystemExit(
            f"the floor is none: tiles send {tally(case.notes[TILES])} messages and it sends "
            f"{tally(case.notes[FLOOR])}"
        )
    modes = (ONE, TWO, TILES, FUSED, FLOOR, SILENT)
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    for turn in range(rounds + 1):
        for mode in modes:
            if not turn and mode not in (ONE, TWO):
                continue  # warm already
            token.meet()
            started = time.perf_counter()
            if case.takes_part(mode):
                case.step(mode)
            token.meet()
            if turn:
                times[mode].append(time.perf_counter() - started)
    return times


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def peak_above_imports(name: str, size: int, mode: str) -> None:
    """Run in processes of its own: print this rank's peak resident memory in MiB for one mode."""
    comm = mpi4dl.init()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    case = Case(name, size, comm)
    for _ in range(2):
        case.step(mode)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    print(f"PEAK {comm.rank} {used:.0f}", flush=True)


def memory(name: str, size: int, mode: str, ranks: int) -> list[int]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(Path(__file__).resolve())]
    command += ["--model", name, "--size", str(size), "--peak-of", mode]
    environment = {k: v for k, v in os.environ.items() if not _from_launcher(k)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("PEAK")]
    return [int(used) for _, _, used in sorted(lines)]


def _from_launcher(variable: str) -> bool:
    return variable.startswith(("TORCHELASTIC", "GROUP_", "ROLE_")) or variable in (
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
    )


# ── the report ───────────────────────────────────────────────────────────────────────────────────


def report(case: Case, times: dict[str, list[float]], peaks: dict[str, list[int]]) -> Any:
    medians = {mode: statistics.median(values) for mode, values in times.items()}
    messages = {mode: tally(notes) for mode, notes in case.notes.items()}
    rounds = len(times[TILES])
    print(f"\n{case.name} {case.size}², batch 1, float32, {case.comm.size} ranks, {rounds} rounds")
    print(f"{'':24s}{'median s':>9s}{'fastest':>9s}{'exchanges':>11s}{'reductions':>11s}", end="")
    print("   peak MiB a rank")
    for mode, value in medians.items():
        counts = [
            sum(n for what, n in messages.get(mode, {}).items() if what.endswith(kind))
            for kind in ("exchanges", "reductions")
        ]
        print(
            f"{mode:24s}{value:9.3f}{min(times[mode]):9.3f}{counts[0]:11d}{counts[1]:11d}", end=""
        )
        print("  ", *peaks.get(mode, ()))
    ratios = {f"{a} / {b}": medians[a] / medians[b] for a, b in BARS}
    for (a, b), bar in BARS.items():
        ratio = ratios[f"{a} / {b}"]
        print(f"{f'{a} / {b}':40s}{ratio:7.3f}   {_verdict(ratio, bar)}")
    for mode in (TILES, FUSED):
        if mode in peaks:
            share = max(peaks[mode]) / peaks[ONE][0]
            ratios[f"memory: {mode} / {ONE}"] = share
            print(f"{f'memory: {mode} / {ONE}':40s}{share:7.3f}   {_verdict(share, MEMORY_BAR)}")
    return {
        "model": case.name,
        "size": case.size,
        "ranks": case.comm.size,
        "times": times,
        "medians": medians,
        "ratios": ratios,
        "messages": messages,
        "peaks": peaks,
    }


def _verdict(value: float, bar: float) -> str:
    return f"bar {bar:.2f}: {'met' if value <= bar else 'missed'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=[*MODELS, "all"], nargs="+", default=["resnet50"])
    parser.add_argument("--size", type=int, nargs="+", default=[1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(MODELS) if "all" in options.model else options.model
    if options.peak_of:
        return peak_above_imports(names[0], options.size[0], options.peak_of)
    comm = mpi4dl.init()
    records = []
    for name in names:
        for size in options.size:
            case = Case(name, size, comm)
            if options.profile:
                profile_table(f"{name} {size}²", [TILES, FUSED, SILENT], case.step, comm.rank)
                continue
            times = measure(case, options.rounds)
            if comm.rank:
                continue
            ranks = {ONE: 1, TILES: comm.size, FUSED: comm.size}
            measured = {} if options.no_memory else ranks
            peaks = {mode: memory(name, size, mode, n) for mode, n in measured.items()}
            records.append(report(case, times, peaks))
    if options.json and not comm.rank:
        options.json.write_text(json.dumps(records, indent=1))
    return None


main()
