"""What a tile adds to the time of a call: tiny tensors, so that only overhead is left.

    python benchmarks/operator_overhead/run.py

Plain tensors and tiles are timed in turns; the figures are the best of several repeats.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import mpi4dl

Operation = Callable[[Any, Any, Any], Any]

OPERATIONS: dict[str, Operation] = {
    "torch.relu(x)": lambda x, y, p: torch.relu(x),
    "F.relu(x)": lambda x, y, p: F.relu(x),
    "F.relu(x, inplace=True)": lambda x, y, p: F.relu(x, inplace=True),
    "x.relu_()": lambda x, y, p: x.relu_(),
    "x + y": lambda x, y, p: x + y,
    "x += y": lambda x, y, p: x.__iadd__(y),
    "x * 2": lambda x, y, p: x * 2,
    "x * channel gate": lambda x, y, p: x * p,
    "x.shape": lambda x, y, p: x.shape,
    "F.conv2d(x, 3×3)": lambda x, y, p: F.conv2d(x, WEIGHT, padding=1),
    "F.batch_norm(x), eval": lambda x, y, p: F.batch_norm(x, MEAN, ONE, ONE, MEAN),
    "F.max_pool2d(x, 2)": lambda x, y, p: F.max_pool2d(x, 2),
    "x.mean((2, 3))": lambda x, y, p: x.mean((2, 3)),
}
WEIGHT, MEAN, ONE = torch.ones(4, 4, 3, 3), torch.zeros(4), torch.ones(4)


def microseconds(call: Callable[[], Any], repeats: int) -> float:
    number = 2000
    return min(timeit.repeat(call, number=number, repeat=repeats)) / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y, gate = torch.ones(1, 4, 4, 4), torch.zeros(1, 4, 4, 4), torch.ones(4, 1, 1)
    tile, other = mpi4dl.shard(x), mpi4dl.shard(y)
    rows = {}
    print(f"{'call':26s} {'plain µs':>9s} {'tile µs':>9s} {'added µs':>9s}")
    for name, call in OPERATIONS.items():
        plain = microseconds(lambda c=call: c(x, y, gate), options.repeats)
        tiled = microseconds(lambda c=call: c(tile, other, gate), options.repeats)
        rows[name] = {"plain": plain, "tile": tiled}
        print(f"{name:26s} {plain:9.2f} {tiled:9.2f} {tiled - plain:9.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


main()
