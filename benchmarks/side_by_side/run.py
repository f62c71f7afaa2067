"""Layer parallelism and tiles side by side: what users of the original compared, in one run.

    python benchmarks/side_by_side/run.py --json side_by_side.json --picture side_by_side.png

Each mode is a command line of `mpi4dl bench` for five ranks: five layer-parallel stages; or four
tiles (square, vertical, horizontal), with and without --halo-D2, and a last stage on the fifth
rank. The modes of a model, image size and batch size train in turns, round by round, from the same
weights on the same images; if their first losses differ, or if a rank sends other bytes than
predicted, there is no table. One thread a rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from chart import draw
from volume import predicted

import mpi4dl
from mpi4dl.comm.communicator import Communicator, use
from mpi4dl.comm.launchers import started_by
from mpi4dl.comm.local_ranks import run_local_ranks
from mpi4dl.comm.objects import shared
from mpi4dl.train import KINDS, flags
from mpi4dl.train.arguments import Parser
from mpi4dl.train.configuration import Configuration, configured
from mpi4dl.train.data import source
from mpi4dl.train.loop import trainer_of
from mpi4dl.train.timed import Log, timed
from mpi4dl.train.traffic import Traffic, counted

RANKS = 5
D2 = "--halo-D2"
MODES = {"layer": f"layer --split-size {RANKS}"} | {
    f"{method}{', D2' * bool(d2)}": f"spatial --slice-method {method} {d2}".strip()
    for method, d2 in product(("square", "vertical", "horizontal"), ("", D2))
}


@dataclass(frozen=True)
class Case:
    model: str
    size: int
    batch: int
    more: str
    """Flags of the model."""

    def command(self, mode: str) -> str:
        kind, _, rest = MODES[mode].partition(" ")
        own = f"--image-size {self.size} --batch-size {self.batch}"
        return f"{kind} {self.model} {own} {rest} {self.more}".strip()

    def configuration(self, mode: str, balance: tuple[int, ...] | None = None) -> Configuration:
        kind, model, *words = self.command(mode).split()
        if balance is not None:
            words += ["--balance", ",".join(map(str, balance))]
        options = flags(KINDS[kind], Parser(prog="bench")).parse_args(words)
        return configured(KINDS[kind], model, options, RANKS)


class Run:
    """A mode that trains."""

    def __init__(self, configuration: Configuration, comm: Communicator) -> None:
        self.configuration, self._comm, self._log = configuration, comm, Log()
        options = configuration.options
        with use(timed(comm, self._log)):
            self._trainer = trainer_of(configuration, configuration.build())
        self._images = source(options, configuration.samples)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        """From the moment that all ranks are there until this one has the loss of the batch."""
        images = self._images.batch(len(self.losses))
        self._log.calls.clear()
        with use(timed(self._comm, self._log)):
            self._comm.all_reduce(torch.zeros(1))
            started = time.perf_counter()
            loss = self._trainer.step(*images)
        self.seconds.append(time.perf_counter() - started)
        self.losses.append(float(loss))

    def traffic(self) -> list[Traffic]:
        """What every rank has sent in the last step. Collective."""
        return shared(counted(self._log.calls), self._comm)


def measured(case: Case, rounds: int, comm: Communicator) -> list[dict[str, Any]]:
    """Collective; rank 0 gets to know."""
    runs = {mode: Run(_configured(case, mode, comm), comm) for mode in MODES}
    for turn in range(rounds + 1):  # the first one warms up
        for mode in _turned(list(runs), turn):
            runs[mode].step()
    first = {mode: run.losses[0] for mode, run in runs.items()}
    if max(first.values()) > 1.01 * min(first.values()):
        raise SystemExit(f"the modes do not train the same: their first losses are {first}")
    sent = {mode: run.traffic() for mode, run in runs.items()}
    if comm.rank > 0:
        return []
    return [_record(case, mode, run, sent[mode]) for mode, run in runs.items()]


def _configured(case: Case, mode: str, comm: Communicator) -> Configuration:
    """Rank 0 balances the stages for all."""
    found = case.configuration(mode) if comm.rank == 0 else None
    (balance, *_) = shared(found and found.plan.balance, comm)
    return found or case.configuration(mode, balance)


def _turned(modes: list[str], turn: int) -> list[str]:
    start = turn % len(modes)
    return modes[start:] + modes[:start]


def _record(case: Case, mode: str, run: Run, sent: list[Traffic]) -> dict[str, Any]:
    seconds = run.seconds[1:]
    with torch.device("meta"):
        model = run.configuration.build()
    volume = predicted(run.configuration.plan, model, (case.batch, 3, case.size, case.size))
    if volume != sent:
        raise SystemExit(f"{case.command(mode)}: predicted {volume}, and sent {sent}")
    return {
        "mode": mode,
        "command": case.command(mode),
        "model": case.model,
        "image_size": case.size,
        "batch_size": case.batch,
        "seconds": seconds,
        "images_per_second": case.batch / statistics.median(seconds),
        "losses": run.losses,
        "predicted_bytes": [asdict(traffic) for traffic in volume],
    }


HEADER = (
    f"{'':40s}{'images/s':>9s}{'median s':>9s}{'fastest':>9s}   MB of the rank that sends most\n"
    f"{'model':10s}{'image':>6s}{'batch':>6s}  {'mode':16s}{'':27s}"
    f"{'halo':>9s}{'statist.':>9s}{'transfer':>9s}{'gradients':>10s}{'all':>8s}"
)


def line(record: dict[str, Any]) -> str:
    seconds, busiest = record["seconds"], busiest_rank(record)
    kinds = [busiest[name] / 1e6 for name in ("halo", "statistics", "transfer", "gradients")]
    cells = "".join(
        f"{mb:{w}.2f}" for mb, w in zip([*kinds, sum(kinds)], (9, 9, 9, 10, 8), strict=True)
    )
    return (
        f"{record['model']:10s}{record['image_size']:6d}{record['batch_size']:6d}  "
        f"{record['mode']:16s}{record['images_per_second']:9.3f}{statistics.median(seconds):9.3f}"
        f"{min(seconds):9.3f}{cells}"
    )


def busiest_rank(record: dict[str, Any]) -> dict[str, int]:
    most: dict[str, int] = max(record["predicted_bytes"], key=lambda sent: sum(sent.values()))
    return most


def cases(options: Namespace) -> Iterator[Case]:
    filters = f"--num-filters {options.num_filters}"
    for size, batch in product(options.resnet, options.batch_sizes):
        yield Case("resnet", size, batch, "")
    for size, batch in product(options.amoebanet, options.batch_sizes):
        yield Case("amoebanet", size, batch, filters)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--resnet", type=int, nargs="*", default=[64, 128], help="image sizes")
    parser.add_argument("--amoebanet", type=int, nargs="*", default=[256, 512], help="image sizes")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--num-filters", type=int, default=64, help="of AmoebaNet")
    parser.add_argument("--rounds", type=int, default=4, help="that count")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--picture", metavar="PNG")
    options = parser.parse_args()
    if started_by(os.environ) is None:
        return run_local_ranks(RANKS, [sys.executable, *sys.argv], speaker=0)
    torch.set_num_threads(1)
    comm = mpi4dl.init()
    begun, records = time.monotonic(), []
    if comm.rank == 0:
        print(HEADER, flush=True)
    for case in cases(options):
        found = measured(case, options.rounds, comm)
        records += found
        if comm.rank == 0:
            print("\n".join(map(line, found)), flush=True)
    if comm.rank == 0:
        print(f"{options.rounds} rounds, {time.monotonic() - begun:.0f} s altogether")
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(
                    {"ranks": RANKS, "rounds": options.rounds, "runs": records}, file, indent=1
                )
        if options.picture:
            draw(records, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
