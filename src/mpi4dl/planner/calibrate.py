"""`mpi4dl calibrate`: a file that describes this machine, a device and a cluster of one node."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..comm.local_ranks import run_local_ranks
from ..errors import LaunchError
from .cluster import Cluster, Link, cluster_of
from .device import Curve, Device, on, save

_PER_NODE = 64  # as many ranks as may be started on one machine; more than cores share them


def calibrate(path: str) -> tuple[Device, Cluster]:
    """Measure, and write the file."""
    cores = len(os.sched_getaffinity(0))
    ranks = max(1, min(cores, 8))
    found = _run(ranks, {})
    crowded = _run(2 * ranks, {"curves": found["curves"]}) if ranks == cores else None
    device, cluster = described(found, crowded, cores)
    save(device, path, {"cluster": asdict(cluster)})
    return device, cluster


def _run(ranks: int, given: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        task, answer = Path(folder) / "task.json", Path(folder) / "answer.json"
        task.write_text(json.dumps(given), encoding="utf-8")
        program = [sys.executable, "-m", "mpi4dl.planner.calibration_ranks"]
        code = run_local_ranks(ranks, [*program, str(task), str(answer)], speaker=0)
        if code or not answer.exists():
            raise LaunchError(f"the ranks that measure ended with code {code}: see above")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def described(
    found: dict[str, Any], crowded: dict[str, Any] | None, cores: int
) -> tuple[Device, Cluster]:
    curves = {name: _curve(points) for name, points in found["curves"].items()}
    links = found.get("links")
    exchange = _curve(links["exchange"]) if links else ((8.0, 1e-5), (2.0**24, 5e-3))
    reduce = _curve(links["reduce"]) if links else exchange
    inside = Link(exchange[0][1], _rate(exchange))
    talks = found.get("tile talks", 0)
    tile = found.get("tiles", 0.0) - talks * (reduce[0][1] + exchange[0][1]) / 2
    own = tile + talks * (reduce[0][1] + exchange[0][1]) / 2
    abreast = _slower(found, found.get("large work", 0.0) + own) if links else 1.0
    late, slower = _crowded(
        crowded, found["among others"], tile / max(1, found.get("tile operators", 1)), reduce[0][1]
    )
    device = Device(
        name=platform.node(),
        kind="cpu",
        memory=_memory() // max(1, cores),
        flops=_flops(curves),
        bandwidth=_rate(curves["add"]),
        launch=curves["add"][0][1],
        convolution=1.0,
        streaming=1.0,
        runtime=int(found["runtime"]),
        among_others=found["among others"],
        fault=found["fault"],
        python=found["python"],
        tile_python=max(found["python"], tile / max(1, found.get("tile operators", 1))),
        step=found.get("step", 1e-3),
        curves=curves,
        about=f"measured on {cores} cores, {platform.machine()}, one thread a rank",
    )
    cluster = Cluster(
        ranks_per_node=_PER_NODE,
        inside=inside,
        between=inside,
        cores=cores,
        copies=True,
        reduce_latency=reduce[0][1],
        alone=found.get("alone", 1.0),
        abreast=abreast,
        crowded=slower,
        crowded_latency=late,
        overlap=False,
    )
    return device, cluster


def _crowded(
    found: dict[str, Any] | None, others: float, each: float, latency: float
) -> tuple[float, float]:
    """Of twice as many ranks as cores: what a message costs more, and how much slower tiles are.

    They take turns, so everything takes twice as long; what goes beyond that is waiting.
    """
    if found is None:
        return 0.0, 1.0
    own = each * found["tile operators"]
    beyond = found["tiles"] + found["work"] - 2 * (found["work"] + own)
    late = max(0.0, beyond / found["tile talks"] / 2 - latency)
    expected = 2 * (others * found["large work"] + own + found["tile talks"] * (late + latency))
    return late, _slower(found, expected)


def _slower(found: dict[str, Any], expected: float) -> float:
    """How much longer the large network took on tiles than its operators and messages."""
    return max(1.0, (found["large"] + found["large work"]) / expected)


def load_machine(path: str) -> tuple[Device, Cluster]:
    """Both, from a file that `calibrate` has written."""
    from .device import load

    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return load(path), cluster_of(data["cluster"])


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    return tuple((float(size), float(took)) for size, took in points)


def _rate(curve: Curve) -> float:
    """Bytes a second of what is large."""
    return curve[-1][0] / curve[-1][1]


def _flops(curves: dict[str, Curve]) -> float:
    name = "conv forward 3x3/1 g1 256>256"
    pixels = 56.0**2
    return 2 * 9 * 256 * 256 * pixels / on(curves[name], pixels)


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
