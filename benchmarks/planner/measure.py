"""One plan, trained for a few steps by the ranks that it needs; prints what each of them used.

    mpi4dl run --ranks 2 benchmarks/planner/measure.py '{"model": "resnet50", ...}'

`run.py` calls it. Peaks are of resident memory above what was resident after all imports: once as
the allocator is, and before that with blocks returned to the system at once, so that it is what
was in use together.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mpi4dl
from models import MODELS
from mpi4dl.comm.objects import shared

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


def resident(kind: str) -> int:
    """Bytes: `VmRSS` now, or `VmHWM`, the most since it was last forgotten."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def blocks_return_from(size: int, kept: int) -> None:
    """Blocks of so many bytes return to the system at once, and more than `kept` at the end."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, size)
    libc.mallopt(_TRIM_THRESHOLD, kept)


class Images:
    """Made as they are asked for, as a loader does."""

    dtype = torch.float32

    def __init__(self, count: int, size: int) -> None:
        self.shape = (count, 3, size, size)

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        return torch.rand([len(range(n)[s]) for n, s in zip(self.shape, where, strict=True)])


def measured(case: dict[str, Any], steps: int) -> dict[str, Any]:
    comm = mpi4dl.init()
    blocks_return_from(2**16, 2**16)
    forget_peak()
    before = resident("VmRSS")
    torch.manual_seed(0)
    plan = mpi4dl.Plan(**case["plan"])
    batch, size = case["batch"], case["size"]
    model = MODELS[case["model"]]()
    trainer = mpi4dl.Trainer(
        model,
        plan,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        example=(1, 3, size, size),
    )
    keep = list(trainer._setup.modules.values())
    del model
    gc.collect()
    images, labels = Images(batch, size), torch.arange(batch) % 10
    for _ in range(2):
        trainer.step(images, labels)
    together = resident("VmHWM") - before
    blocks_return_from(2**25, 2**26)  # where glibc's own adjustment ends
    seconds = []
    for number in range(steps + 1):
        comm.all_reduce(torch.zeros(1))
        started = time.perf_counter()
        trainer.step(images, labels)
        comm.all_reduce(torch.zeros(1))
        if number:
            seconds.append(time.perf_counter() - started)
    spans = [(str(s.action), s.start - started, s.duration) for s in trainer.spans]
    usual = resident("VmHWM") - before
    own = {"usual": usual, "together": together, "spans": spans}
    return {"seconds": seconds, "ranks": shared(own, comm), "layers": [len(m) for m in keep]}


def main() -> None:
    torch.set_num_threads(1)
    case, steps = json.loads(sys.argv[1]), int(sys.argv[2])
    found = measured(case, steps)
    if mpi4dl.init().rank == 0:
        print("MEASURED", json.dumps(found), flush=True)


main()
