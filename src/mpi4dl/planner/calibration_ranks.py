"""`python -m mpi4dl.planner.calibration_ranks`: run as one rank on each core by `mpi4dl calibrate`.

Rank 0 writes what they have found to a file.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..comm.communicator import Communicator
from ..comm.launch import init
from ..pipeline import Plan, Trainer
from .calibration import (
    as_usual,
    convolutions,
    elementwise,
    fault,
    generic,
    keep_memory,
    return_at_once,
    seconds,
)
from .costs import StageCosts
from .device import Device
from .profile import Profile

_MESSAGES = (2, 2**10, 2**14, 2**18, 2**20, 2**22)
"""Numbers of float32."""


def network(width: int = 16, depth: int = 12) -> nn.Sequential:
    """Small: what it takes is what operators cost beside their work."""
    torch.manual_seed(0)  # the same on all ranks
    first = [nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers = [nn.Sequential(*first), *(_block(width, width, 3, 1) for _ in range(depth))]
    return nn.Sequential(*layers, _head(width))


def varied() -> nn.Sequential:
    """Something of everything: each kind of kernel is compiled once, and stays in memory."""
    torch.manual_seed(0)
    shapes = [(3, 1), (1, 1), (3, 2), (1, 1), (5, 1), (1, 2), (3, 1)]
    widths = [16, 16, 24, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512, 512]
    layers = [
        nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1))
    ]
    for number, (inner, outer) in enumerate(pairwise(widths)):
        kernel, stride = shapes[number % len(shapes)]
        layers.append(_block(inner, outer, kernel, stride if number < 7 else 1))
    return nn.Sequential(*layers, _head(512))


def _block(inner: int, outer: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU(inplace=True))


def _head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def resident(kind: str = "VmRSS") -> int:
    """Bytes; 0 where the system does not say."""
    status = Path("/proc/self/status")
    found = re.search(rf"{kind}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def runtime(comm: Communicator) -> int:
    """Bytes that training needs beside its tensors: libraries loaded late, compiled kernels."""
    return_at_once()
    before, size = resident(), 96
    model = varied()
    plan = Plan(num_spatial_parts=comm.size) if comm.size > 1 else Plan()
    step = training(plan, size, 1, model)
    for _ in range(3):
        step()
    parameters = sum(4 * p.numel() for p in model.parameters())
    copies = 2 if comm.size == 1 else 4  # momentum; gradients of two ranks in shared memory
    return max(0, resident() - before - copies * parameters)


def training(plan: Plan, size: int, batch: int, model: nn.Module | None = None) -> Any:
    optimizer = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    trainer = Trainer(model or network(), plan, loss=F.cross_entropy, optimizer=optimizer)
    images, labels = torch.rand(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)
    return lambda: trainer.step(images, labels)


def overheads(
    comm: Communicator, device: Device, size: int = 64, width: int = 16
) -> dict[str, float]:
    """Of operators, plain and of tiles, and of a step."""
    profile = Profile(network(width), (3, size, size))
    images, labels = torch.rand(1, 3, size, size), torch.zeros(1, dtype=torch.int64)
    model = network(width)

    def plain() -> None:
        F.cross_entropy(model(images), labels).backward()

    (costs,) = profile.stages(profile.balanced(Plan()), 1)
    alone = seconds(plain, 0.2)
    python = max(0.0, alone - _work(costs, device)) / _count(costs)
    found = {"python": python}
    if comm.size > 1:
        replicas = training(Plan(replicas=comm.size), size, comm.size, network(width))
        whole = _together(replicas, comm, 20)
        found["step"] = max(0.0, whole - alone)
        plan = profile.balanced(Plan(num_spatial_parts=comm.size, slice_method="horizontal"))
        tiled = (
            _together(training(plan, size, 1, network(width)), comm, 20 if size < 256 else 6)
            - found["step"]
        )
        (costs,) = profile.stages(plan, 1)
        talks = sum(sum(costs.talks(part).values()) for part in (None, 0))
        found["work"] = _work(costs, device)
        found["tiles"] = max(0.0, tiled - found["work"])
        found["tile operators"], found["tile talks"] = _count(costs), talks
    return found


def _work(costs: StageCosts, device: Device) -> float:
    return sum(
        device.seconds(op) * n for part in (None, 0) for op, n in costs.operators(part).items()
    )


def _count(costs: StageCosts) -> int:
    return sum(sum(costs.operators(part).values()) for part in (None, 0))


def _together(do: Any, comm: Communicator, rounds: int) -> float:
    """The median of rounds in which all ranks take part."""
    took = []
    for _ in range(rounds + 2):
        comm.all_reduce(torch.zeros(1))
        started = time.perf_counter()
        do()
        took.append(time.perf_counter() - started)
    return statistics.median(took[2:])


def links(comm: Communicator) -> dict[str, list[tuple[float, float]]]:
    """Exchanges with a neighbour and all-reduces: seconds for so many bytes."""
    found: dict[str, list[tuple[float, float]]] = {"exchange": [], "reduce": []}
    other = comm.rank ^ 1
    for count in _MESSAGES:
        mine, theirs = torch.ones(count), torch.empty(count)

        def exchange(mine: Tensor = mine, theirs: Tensor = theirs) -> None:
            if other < comm.size:
                comm.start([(other, mine)], [(other, theirs)]).wait()

        rounds = 200 if count < 2**18 else 20
        found["exchange"].append((4.0 * count, _together(exchange, comm, rounds)))
        found["reduce"].append(
            (4.0 * count, _together(partial(comm.all_reduce, mine), comm, rounds))
        )
    return found


def among_others(comm: Communicator, device: Device) -> float:
    """How much longer operators take in a network than by themselves: memory that the system has
    taken back, caches that others have filled. Of two networks that are no test for anything."""
    as_usual()
    ratios = []
    for model, size in ((varied(), 320), (network(32), 384)):
        profile = Profile(model, (3, size, size))
        (costs,) = profile.stages(profile.balanced(Plan()), 1)
        expected = _work(costs, device) + device.python * _count(costs)
        ratios.append(_together(partial(_step, model, size), comm, 8) / expected)
    return max(1.0, statistics.mean(ratios))


def _step(model: nn.Module, size: int) -> None:
    images, labels = torch.rand(1, 3, size, size), torch.zeros(1, dtype=torch.int64)
    F.cross_entropy(model(images), labels).backward()
    for parameter in model.parameters():
        parameter.grad = None


def _one_at_a_time(comm: Communicator) -> float:
    """While a rank gets memory the others compute, as a rule."""
    took = 0.0
    for rank in range(comm.size):
        if rank == comm.rank:
            took = fault()
        comm.all_reduce(torch.zeros(1))
    return took


def alone(comm: Communicator, curves: dict[str, Any]) -> float:
    """How long kernels take where the other cores rest, relative to where they work."""
    few = [c for c in generic() if c.weight[0] == 64 and c.stride == (1, 1)][-2:]
    ratios = []
    if comm.rank == 0:
        for name, curve in convolutions(few).items():
            busy = dict(curves[name])
            ratios += [took / busy[size] for size, took in curve]
        for name, curve in elementwise(("add", "native_batch_norm")):
            ratios += [took / was for (_, took), (_, was) in zip(curve, curves[name], strict=True)]
    else:
        time.sleep(1.0)
    comm.all_reduce(torch.zeros(1))
    return min(1.0, statistics.median(ratios)) if ratios else 1.0


def measured(comm: Communicator) -> dict[str, Any]:
    found: dict[str, Any] = {"fault": _one_at_a_time(comm), "runtime": runtime(comm)}
    keep_memory()
    comm.all_reduce(torch.zeros(1))
    curves: dict[str, Any] = dict(elementwise())
    comm.all_reduce(torch.zeros(1))
    curves |= convolutions(generic())
    comm.all_reduce(torch.zeros(1))
    found |= {"curves": curves, "alone": alone(comm, curves) if comm.size > 1 else 1.0}
    if comm.size > 1:
        found["links"] = links(comm)
    found |= overheads(comm, _known(curves))
    if comm.size > 1:
        large = overheads(comm, _known(curves), 512, 48)
        found |= {"large": large["tiles"], "large work": large["work"]}
    known = replace(_known(curves), python=found["python"])
    return found | {"among others": among_others(comm, known)}


def _known(curves: dict[str, Any]) -> Device:
    return Device("this", "cpu", 1, 1e11, 1e10, 1e-6, curves=curves)


def crowded(comm: Communicator, curves: dict[str, Any]) -> dict[str, Any]:
    """With more ranks than cores: what messages and tiles cost then."""
    device = _known(curves)
    small, large = overheads(comm, device), overheads(comm, device, 512, 48)
    return {"links": links(comm), **small, "large": large["tiles"], "large work": large["work"]}


def main() -> None:
    comm = init()
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = crowded(comm, given["curves"]) if "curves" in given else measured(comm)
    if comm.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
