"""One training step on two tiles, against one process and against floors, in one run.

    torchrun --nproc-per-node 2 benchmarks/spatial_step/run.py --model resnet50 --size 1024

Modes, interleaved round by round (one thread a rank unless it says otherwise):

    one process, 1 thread    the whole image, plain PyTorch
    one process, 2 threads   the same
    tiles                    two ranks with half the image each: mpi4dl
    tiles, fused             the same, every layer of the model (a residual block, a cell) with one
                             exchange of its own: mpi4dl.FusedHalo
    sync floor               plain PyTorch on half the image, with a 4-byte message wherever tiles
                             exchange something; no halos, no copies, wrong results
    no communication         plain PyTorch on half the image
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
from torch import Tensor, nn

import mpi4dl
from mpi4dl.comm.communicator import Communicator
from mpi4dl.models import amoebanet_d, resnet50

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: resnet50(num_classes=10),
    "amoebanet": lambda: amoebanet_d(6, 64, num_classes=10),
}


class _Sync(torch.autograd.Function):
    """A 4-byte message to the other rank, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, reduce: bool) -> Tensor:
        ctx.comm, ctx.reduce = comm, reduce
        _meet(comm, reduce)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        _meet(ctx.comm, ctx.reduce)
        return grad, None, None


def _meet(comm: Communicator, reduce: bool) -> None:
    token = torch.zeros(1)
    if reduce:
        comm.all_reduce(token)
    else:
        other = 1 - comm.rank
        comm.start([(other, token)], [(other, torch.empty(1))]).wait()


def with_syncs(model: nn.Module, comm: Communicator) -> nn.Module:
    """The model with a message before every layer for which tiles would exchange something."""

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        norm = isinstance(module, nn.BatchNorm2d)
        return (_Sync.apply(args[0], comm, norm), *args[1:])

    for module in model.modules():
        kernel = getattr(module, "kernel_size", 1)
        wide = kernel > 1 if isinstance(kernel, int) else kernel[0] > 1  # rows are cut
        if isinstance(module, nn.BatchNorm2d | nn.AdaptiveAvgPool2d) or wide:
            module.register_forward_pre_hook(before)
    return model


def step(model: nn.Module, x: Tensor, y: Tensor, finish: Callable[[], None]) -> float:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    finish()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-1e-3)
                parameter.grad = None
    return loss.item()


def modes(name: str, size: int, comm: Communicator) -> dict[str, tuple[int, Callable[[], float]]]:
    """name → (ranks that take part, one step)."""
    label = torch.tensor([3])
    layout = mpi4dl.Layout.horizontal((size, size), comm.size)
    rows = layout.boxes[comm.rank][0].size

    # Made when a mode first runs, so that a process that runs one mode holds nothing else.
    @cache
    def model(key: str) -> nn.Module:
        torch.manual_seed(0)
        made = MODELS[name]()
        if key == "fused":
            return nn.Sequential(*map(mpi4dl.FusedHalo, made.children()))
        return with_syncs(made, comm) if key == "floor" else made

    @cache
    def image(height: int) -> Tensor:
        return torch.randn(1, 3, height, size)

    def nothing() -> None:
        return None

    def threads(count: int) -> float:
        torch.set_num_threads(count)
        try:
            return step(model("one"), image(size), label, nothing)
        finally:
            torch.set_num_threads(1)

    def tiles(key: str) -> float:
        tile = mpi4dl.Tile.from_local(image(rows), layout)
        finish = partial(mpi4dl.sync_gradients, model(key), comm)
        return step(model(key), tile, label, finish)

    def floor() -> float:
        finish = partial(mpi4dl.sync_gradients, model("floor"), comm)
        return step(model("floor"), image(rows), label, finish)

    return {
        "one process, 1 thread": (1, lambda: threads(1)),
        "one process, 2 threads": (1, lambda: threads(2)),
        "tiles": (2, lambda: tiles("tiles")),
        "tiles, fused": (2, lambda: tiles("fused")),
        "sync floor": (2, floor),
        "no communication": (2, lambda: step(model("silent"), image(rows), label, nothing)),
    }


def measure(name: str, size: int, rounds: int, comm: Communicator) -> dict[str, list[float]]:
    table = modes(name, size, comm)
    times: dict[str, list[float]] = {mode: [] for mode in table}
    for turn in range(rounds + 1):
        for mode, (ranks, run) in table.items():
            _meet(comm, True)
            started = time.perf_counter()
            if comm.rank < ranks:
                run()
            _meet(comm, True)
            if turn:  # the first round warms up
                times[mode].append(time.perf_counter() - started)
    return times


def peak_above_imports(name: str, size: int, mode: str) -> None:
    """Run in processes of its own: print this rank's peak resident memory in MiB for one mode."""
    comm = mpi4dl.init()
    unit = 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    ranks, run = modes(name, size, comm)[mode]
    for _ in range(2):
        if comm.rank < ranks:
            run()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - before
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak_of:
        return peak_above_imports(options.model, options.size, options.peak_of)
    comm = mpi4dl.init()
    times = measure(options.model, options.size, options.rounds, comm)
    if comm.rank:
        return None
    medians = {mode: statistics.median(values) for mode, values in times.items()}
    peaks = {}
    if not options.no_memory:
        for mode in medians:
            if mode.startswith(("tiles", "one process, 1")):
                peaks[mode] = memory(
                    options.model, options.size, mode, 2 if mode.startswith("tiles") else 1
                )
    print(f"{options.model} {options.size}², batch 1, float32, {options.rounds} rounds")
    print(f"{'mode':24s} {'median s':>9s} {'tiles / it':>11s}   peak MiB a rank")
    for mode, value in medians.items():
        ratio = medians["tiles"] / value
        print(f"{mode:24s} {value:9.3f} {ratio:11.3f}   {peaks.get(mode, '')}")
    if options.json:
        record = {"model": options.model, "size": options.size, "times": times, "peaks": peaks}
        options.json.write_text(json.dumps(record, indent=1))
    return None


main()
