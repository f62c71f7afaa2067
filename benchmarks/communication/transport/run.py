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

The ways take turns, round after round; ratios and differences are those within a round, and what
is printed are medians over rounds. The bars: from 64 KiB, `ours mpi` is at most 1.25 times
`persistent`; below, at most 10 µs more, and at least 5 times as fast as `ours gloo`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from mpi4dl.comm.launch import communicator
from mpi4dl.comm.mpi import rendezvous
from mpi4dl.comm.neighbours import on_one_machine
from mpi4dl.comm.process_group import ProcessGroupCommunicator

SIZES = tuple(2**power for power in (3, 6, 9, 12, 14, 16, 18, 20, 22, 24, 26))
LARGE = 2**16
Way = Callable[[], object]


class Ways:
    """What is compared, on messages of one size at a time."""

    def __init__(self) -> None:
        rank, size, address, port = rendezvous()
        where = f"tcp://{address}:{port}"
        dist.init_process_group("mpi4py", where, rank=rank, world_size=size)
        if size not in (2, 4):
            raise SystemExit("start 2 or 4 ranks")
        self.world = MPI.COMM_WORLD
        self.peers = [rank ^ 1] if size == 2 else [rank ^ 1, rank ^ 2]
        self.gloo = dist.new_group(backend="gloo")
        over_gloo = ProcessGroupCommunicator(self.gloo, range(size), lambda processes: None)
        self.communicators = {
            "ours mpi": communicator(),
            "ours gloo": over_gloo,
            "ours shared": on_one_machine(over_gloo),
        }

    def of(self, size: int) -> tuple[dict[str, Way], list[Any]]:
        """And what must be freed afterwards."""
        sent = [torch.zeros(size, dtype=torch.uint8) for _ in self.peers]
        arrived = [torch.zeros(size, dtype=torch.uint8) for _ in self.peers]
        pairs = [
            (
                peer,
                MPI.buffer.fromaddress(a.data_ptr(), size),
                MPI.buffer.fromaddress(b.data_ptr(), size),
            )
            for peer, a, b in zip(self.peers, sent, arrived, strict=True)
        ]
        requests = [self.world.Recv_init(b, peer) for peer, _, b in pairs]
        requests += [self.world.Send_init(a, peer) for peer, a, _ in pairs]

        def copies() -> None:
            for a, b in zip(sent, arrived, strict=True):
                b.copy_(a)

        def blocking() -> None:
            for peer, a, b in pairs:
                self.world.Sendrecv(a, peer, 0, b, peer, 0)

        def persistent() -> None:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)

        def through_torch(group: dist.ProcessGroup | None) -> Way:
            def exchange() -> None:
                both = [(dist.irecv, arrived), (dist.isend, sent)]
                operations = [
                    dist.P2POp(what, tensor, peer, group)
                    for what, tensors in both
                    for peer, tensor in zip(self.peers, tensors, strict=True)
                ]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()

            return exchange

        def through(comm: Any) -> Way:
            leaving = list(zip(self.peers, sent, strict=True))
            arriving = list(zip(self.peers, arrived, strict=True))
            return lambda: comm.start(leaving, arriving).wait()

        ways: dict[str, Way] = {
            "memcpy": copies,
            "blocking": blocking,
            "persistent": persistent,
            "torch mpi4py": through_torch(None),
            "torch gloo": through_torch(self.gloo),
        }
        ways.update({name: through(comm) for name, comm in self.communicators.items()})
        return ways, requests

    def microseconds(self, way: Way, repeats: int) -> float:
        """Of one exchange, on the slowest rank."""
        self.world.Barrier()
        started = time.perf_counter()
        for _ in range(repeats):
            way()
        mine = (time.perf_counter() - started) / repeats * 1e6
        return self.world.allreduce(mine, MPI.MAX)


def measured(ways: Ways, size: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """A time for each round."""
    these, requests = ways.of(size)
    repeats = {}
    for name, way in these.items():
        ways.microseconds(way, 2)
        repeats[name] = max(2, min(500, int(seconds * 1e6 / ways.microseconds(way, 3))))
    times: dict[str, list[float]] = {name: [] for name in these}
    for _ in range(rounds):
        for name, way in these.items():
            times[name].append(ways.microseconds(way, repeats[name]))
    for request in requests:
        request.Free()
    return times


def compared(times: dict[str, list[float]], size: int) -> dict[str, Any]:
    """The bars at one size: medians over rounds of what is compared within each."""

    def median(combine: Callable[[float, float], float], a: str, b: str) -> float:
        return statistics.median(map(combine, times[a], times[b]))

    ratio = median(lambda a, b: a / b, "ours mpi", "persistent")
    more = median(lambda a, b: a - b, "ours mpi", "persistent")
    faster = median(lambda a, b: a / b, "ours gloo", "ours mpi")
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
    rows = []
    for size in SIZES:
        times = measured(ways, size, options.rounds, options.seconds)
        row = {
            "bytes": size,
            "median": {name: statistics.median(each) for name, each in times.items()},
            "best": {name: min(each) for name, each in times.items()},
            "bars": compared(times, size),
        }
        if ways.world.rank == 0:
            show(row, first=not rows)
        rows.append(row)
    if ways.world.rank == 0:
        print(f"{sum(row['bars']['met'] for row in rows)} of {len(rows)} sizes meet their bars")
        if options.json:
            options.json.write_text(json.dumps({"ranks": ways.world.size, "rows": rows}, indent=1))
    dist.destroy_process_group()


def show(row: dict[str, Any], first: bool) -> None:
    if first:
        names = "".join(f"{name:>14s}" for name in row["median"])
        print(f"{'bytes':>9s}{names}{'ratio':>8s}{'more µs':>9s}{'gloo ×':>8s}")
    bars = row["bars"]
    times = "".join(f"{t:14.1f}" for t in row["median"].values())
    numbers = f"{bars['ratio']:8.2f}{bars['more']:9.1f}{bars['faster than gloo']:8.1f}"
    print(f"{row['bytes']:9d}{times}{numbers}{'' if bars['met'] else '  missed'}", flush=True)


main()
