"""Peak memory of every rank in a training step, as batches grow.

    python benchmarks/pipeline_step/memory.py --ranks 2

GEMS repeats batches (`times`) and should need no more for it, nor should 1F1B for more
micro-batches than there are ranks; GPipe keeps all of them, and stands beside. Each line runs in
processes of its own: the most that was resident during three steps, above what was when everything
was imported. The allocator returns large blocks to the system at once (MALLOC_MMAP_THRESHOLD_): so
this is what was in use together, not what was kept for later. All samples are one image.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from modes import MODELS, Case, ours, theirs

import mpi4dl
from mpi4dl.comm.objects import shared

MICRO_BATCHES = (2, 4, 8, 16)
TIMES = (1, 2, 4)
Line = tuple[str, str, int, int]
"""Whose, which schedule, micro-batches of a batch, batches of a step."""


def lines() -> list[Line]:
    gems: list[Line] = [("mpi4dl", "gems", 1, times) for times in TIMES]
    return gems + [
        (whose, schedule, parts, 1)
        for schedule in ("1f1b", "gpipe")
        for whose in ("mpi4dl", "torch")
        for parts in MICRO_BATCHES
    ]


def _resident(kind: str) -> float:
    """MiB: `VmRSS` now, or `VmHWM`, the most since it was last forgotten."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def peaks(case: Case, whose: str, schedule: str) -> None:
    """In processes of its own: print every rank's peak."""
    comm = mpi4dl.init()
    Path("/proc/self/clear_refs").write_text("5")  # forget the most so far
    before = _resident("VmRSS")
    step = {"mpi4dl": ours, "torch": theirs}[whose](case, schedule)
    for _ in range(3):
        step()
    used = shared(_resident("VmHWM") - before, comm)
    if comm.rank == 0:
        print("PEAKS", json.dumps(used), flush=True)


def measured(options: argparse.Namespace, line: Line) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(options.ranks), str(Path(__file__).resolve()), "--model", options.model]
    command += ["--size", str(options.size), "--samples", str(options.samples)]
    command += ["--line", *map(str, line)]
    small = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=os.environ | small, stdout=subprocess.PIPE, text=True, check=True
    )
    (found,) = re.findall("PEAKS (.*)", done.stdout)
    return [float(used) for used in json.loads(found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", choices=MODELS, default="resnet29")
    parser.add_argument("--size", type=int, default=128, help="pixels of an image's side")
    parser.add_argument("--samples", type=int, default=1, help="of a micro-batch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--line", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.line:
        whose, schedule, parts, times = options.line
        size = options.samples, options.size, int(times)
        return peaks(Case(options.model, options.ranks, int(parts), *size), whose, schedule)
    print(f"{options.model}, {options.ranks} ranks, micro-batches of {options.samples} × ", end="")
    print(f"{options.size}², float32\nschedule         parts times samples   peak MiB of each rank")
    record = []
    for line in lines():
        whose, schedule, parts, times = line
        used, samples = measured(options, line), parts * times * options.samples
        each = " ".join(f"{mib:7.0f}" for mib in used)
        print(f"{whose:6s} {schedule:10s} {parts:4d} {times:5d} {samples:7d}  {each}", flush=True)
        record.append({"line": line, "samples": samples, "peaks": used})
    if options.json:
        options.json.write_text(json.dumps(record))
    return None


main()
