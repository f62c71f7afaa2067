"""Messages between neighbours, both ways at once, over every transport, side by side.

    mpirun -np 2 python benchmarks/communication/transport/run.py --json 2.json
    mpirun -np 4 python benchmarks/communication/transport/run.py --json 4.json

Every rank sends as many bytes to each neighbour as it receives from it: two ranks have one, four
form a square and have two. The times are of one such exchange, on the slowest rank:

    memcpy        copies of the same bytes inside one process
    blocking      raw mpi4py: Sendrecv with one neighbour after the other
    persistent    raw mpi4py: Startall and Waitall
    torch mpi4py  torch.distributed.batch_isend_irecv over this project's backend
    torch gloo    the same over Gloo
    ours mpi      the Communicator of tiles, which makes the halo exchanges: over MPI
    ours gloo     over Gloo's sockets
    ours shared   over the machine's shared memory

The rest is a halo exchange from a tile to a tile with its halo, in new memory: four rows of the
tile are copied to where they lie between what arrives. Ranks lie in a line.

    by hand       slices, and raw persistent requests
    halo mpi      mpi4dl's `transfer`, differentiable: over MPI
    halo gloo     over Gloo's sockets
    halo shared   over the machine's shared memory

The ways take turns, round after round, in an order that is drawn for each, since what a way leaves
behind (two ranks on one core, a thread awake) costs the next one; ratios and differences are those
within a round, and what is printed are medians over rounds. The bars: from 64 KiB, `ours mpi` is
at most 1.25 times `persistent`; below, at most 10 µs more, and at least 5 times as fast as
`ours gloo`. The halo has the same bars, against `by hand` and `halo gloo`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ways import Ways

SIZES = tuple(2**power for power in (3, 6, 9, 12, 14, 16, 18, 20, 22, 24, 26))
LARGE = 2**16
COMPARED = {
    "ours": ("ours mpi", "persistent", "ours gloo"),
    "halo": ("halo mpi", "by hand", "halo gloo"),
}


def measured(ways: Ways, size: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """A time for each round."""
    these = ways.of(size)
    repeats = {}
    for name, way in these.items():
        ways.microseconds(way, 2)
        repeats[name] = max(2, min(500, int(seconds * 1e6 / ways.microseconds(way, 3))))
    times: dict[str, list[float]] = {name: [] for name in these}
    order = list(these)
    for turn in range(rounds):
        random.Random(turn).shuffle(order)
        for name in order:
            times[name].append(ways.microseconds(these[name], repeats[name]))
    ways.free()
    return times


def compared(times: dict[str, list[float]], size: int, ours: str, raw: str, gloo: str) -> Any:
    """The bars at one size: medians over rounds of what is compared within each."""

    def median(combine: Callable[[float, float], float], a: str, b: str) -> float:
        return statistics.median(map(combine, times[a], times[b]))

    ratio = median(lambda a, b: a / b, ours, raw)
    more = median(lambda a, b: a - b, ours, raw)
    faster = median(lambda a, b: a / b, gloo, ours)
    met = ratio <= 1.25 if size >= LARGE else more <= 10 and faster >= 5
    return {"ratio": ratio, "more": more, "faster than gloo": faster, "met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each way in a round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = Ways()
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        times = measured(ways, size, options.rounds, options.seconds)
        row = {
            "bytes": size,
            "median": {name: statistics.median(each) for name, each in times.items()},
            "best": {name: min(each) for name, each in times.items()},
            **{name: compared(times, size, *names) for name, names in COMPARED.items()},
        }
        if ways.world.rank == 0:
            show(row, first=not rows)
        rows.append(row)
    if ways.world.rank == 0:
        for name in COMPARED:
            met = sum(row[name]["met"] for row in rows)
            print(f"{name}: {met} of {len(rows)} sizes meet their bars")
        if options.json:
            options.json.write_text(json.dumps({"ranks": ways.world.size, "rows": rows}, indent=1))
    dist.destroy_process_group()


def show(row: dict[str, Any], first: bool) -> None:
    """A line of a table in Markdown."""
    heads = ["bytes", *row["median"]]
    for name in COMPARED:
        heads += [f"{name} ratio", "more µs", "gloo ×", "met"]
    if first:
        print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    cells = [size_of(row["bytes"]), *map(short, row["median"].values())]
    for name in COMPARED:
        bars = row[name]
        cells += [f"{bars['ratio']:.2f}", f"{bars['more']:.1f}", f"{bars['faster than gloo']:.1f}"]
        cells += ["yes" if bars["met"] else "no"]
    print("| " + " | ".join(cells) + " |", flush=True)


def short(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:.0f}"


def size_of(count: int) -> str:
    for unit, name in ((2**20, " Mi"), (2**10, " Ki")):
        if count >= unit:
            return f"{count // unit}{name}"
    return str(count)


main()
