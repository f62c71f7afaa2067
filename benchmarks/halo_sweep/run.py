"""One convolution on tiles, for many numbers of ranks, sizes and kernels: is there a cliff?

    python benchmarks/halo_sweep/run.py --ranks 2 3 4 6 8 --size 512 1024 2048 --kernel 3 7 15 31

Starts torchrun for each number of ranks. Forward and backward of a convolution with the padding
that keeps the size, timed in turns:

    tiles     as mpi4dl chooses: own tile first, then the halo's part
    general   the region that the outputs read is put together, then convolved
    alone     plain PyTorch on the part of the image; nothing is sent

More ranks than cores take turns, which the three have in common.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

import mpi4dl
from mpi4dl.comm.communicator import Communicator
from mpi4dl.spatial import convolution

Row = dict[str, float]
MODES = ("tiles", "general", "alone")


def seconds(run: Callable[[], Tensor], comm: Communicator) -> float:
    comm.all_reduce(torch.zeros(1))
    started = time.perf_counter()
    out = run()
    out.backward(torch.ones_like(out))
    comm.all_reduce(torch.zeros(1))
    return time.perf_counter() - started


def measure(size: int, kernel: int, channels: int, rounds: int, comm: Communicator) -> Row:
    conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
    layout = mpi4dl.Layout.square((size, size), comm.size)
    local = torch.randn(1, channels, *layout.boxes[comm.rank].shape)
    tile = mpi4dl.Tile.from_local(local, layout)

    def on_tiles() -> Tensor:
        leaf = tile.detach().requires_grad_()
        return conv(leaf).to_local()

    def general() -> Tensor:
        with patch.object(convolution, "_overlaps", lambda *arguments: False):
            return on_tiles()

    def alone() -> Tensor:
        return conv(local.detach().requires_grad_())

    runs = dict(zip(MODES, (on_tiles, general, alone), strict=True))
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(rounds + 1):
        for mode, run in runs.items():
            taken = seconds(run, comm)
            if turn:
                times[mode].append(taken)
    return {mode: statistics.median(values) for mode, values in times.items()}


def worker(options: argparse.Namespace) -> None:
    """One of the ranks that `launch` starts."""
    torch.set_num_threads(1)
    comm = mpi4dl.init()
    records = []
    for size in options.size:
        for kernel in options.kernel:
            row = measure(size, kernel, options.channels, options.rounds, comm)
            records.append({"ranks": comm.size, "size": size, "kernel": kernel, **row})
    if comm.rank == 0:
        options.json.write_text(json.dumps(records))


def launch(ranks: int, options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), str(Path(__file__).resolve()), "--worker"]
        for name in ("size", "kernel"):
            command += [f"--{name}", *map(str, getattr(options, name))]
        command += ["--channels", str(options.channels), "--rounds", str(options.rounds)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--json", str(result)], env=environment, check=True)
        rows: list[Row] = json.loads(result.read_text())
        return rows


def show(row: Row) -> None:
    tiles, general, alone = (1000 * row[mode] for mode in MODES)
    print(
        f"{row['ranks']:5d} {row['size']:5d}² {row['kernel']:6d} {tiles:9.1f} {general:9.1f}"
        f" {alone:9.1f} {tiles / general:15.2f} {tiles / alone:13.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 6, 8])
    parser.add_argument("--size", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--kernel", type=int, nargs="+", default=[3, 7, 15, 31])
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    print(f"{'ranks':>5s} {'size':>6s} {'kernel':>6s} {'tiles ms':>9s} {'general':>9s}", end=" ")
    print(f"{'alone':>9s} {'tiles / general':>15s} {'tiles / alone':>13s}")
    rows = []
    for ranks in options.ranks:
        for row in launch(ranks, options):
            show(row)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return None


main()
