"""`python -m mpi4dl.train.selftest`: run as two ranks by the doctor; rank 0 prints what it found.

Trains a small network on two tiles and in one process, compares them, and times messages.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..comm.communicator import Communicator
from ..comm.gradients import sync_gradients
from ..comm.launch import init
from ..spatial import shard

_SIZES = {"8 bytes": 1, "64 KiB": 2**13, "8 MiB": 2**20}
"""Numbers of float64."""


def gradient_error(comm: Communicator) -> float:
    """The largest relative error of a parameter's gradient on tiles, in float64."""
    torch.manual_seed(0)
    tiled = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    ).double()
    alone = copy.deepcopy(tiled)
    image = torch.randn(2, 3, 33, 47, dtype=torch.float64)
    tiled(shard(image, grid=(comm.size, 1))).square().mean().backward()
    sync_gradients(tiled, comm)
    alone(image).square().mean().backward()
    largest = max(float(_gradient(p).norm()) for p in alone.parameters())
    return max(
        float((_gradient(a) - _gradient(b)).norm()) / (float(_gradient(b).norm()) + 1e-3 * largest)
        for a, b in zip(tiled.parameters(), alone.parameters(), strict=True)
    )


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def exchange_seconds(comm: Communicator, numbers: int) -> float:
    """Both ranks send so many numbers to each other: the median of a few times."""
    other, mine = 1 - comm.rank, torch.ones(numbers, dtype=torch.float64)
    theirs = torch.empty_like(mine)
    return _median(lambda: comm.start([(other, mine)], [(other, theirs)]).wait())


def _median(do: Callable[[], object], repeats: int = 30) -> float:
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        do()
        took.append(time.perf_counter() - started)
    return statistics.median(took[repeats // 5 :])


def main() -> None:
    comm = init()
    found = {
        "gradient error": gradient_error(comm),
        "all-reduce of 8 bytes": _median(lambda: comm.all_reduce(torch.ones(1))),
        **{f"exchange of {name}": exchange_seconds(comm, n) for name, n in _SIZES.items()},
    }
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
