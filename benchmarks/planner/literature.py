"""The published systems' experiments, simulated: where our schedules stand on the same hardware.

    python benchmarks/planner/literature.py speedup     over layer parallelism and over pipelines
    python benchmarks/planner/literature.py scaling     weak scaling to 1,024 and 2,048 GPUs
    python benchmarks/planner/literature.py fits        which scheme trains which image size

Everything is a simulation: kernels by roofline (published peaks, assumed efficiencies), messages by
latency and bandwidth, memory by dry runs. docs/planner.md states the configurations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpi4dl import Plan
from mpi4dl.models import amoebanet_d, resnet50, resnet_v2
from mpi4dl.pipeline.balance import balanced
from mpi4dl.planner.cluster import Cluster, Link
from mpi4dl.planner.device import DEVICES, Device
from mpi4dl.planner.prediction import Prediction, Setting, predicted
from mpi4dl.planner.profile import Profile
from mpi4dl.planner.recorder import no_workspace

V100 = DEVICES["v100-32gb"]

LASSEN = Cluster(
    ranks_per_node=4,
    inside=Link(5e-6, 75e9, efficiency=0.8),  # NVLink 2, three links to a neighbour
    between=Link(8e-6, 25e9, shared=True, efficiency=0.8),  # two InfiniBand EDR of a node
)
"""Four V100 a node, as in the GEMS and Hy-Fi papers' runs on thousands of GPUs."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "amoebanet": lambda: amoebanet_d(18, 208),
    "resnet": lambda: resnet_v2(110),
    "resnet50": lambda: resnet50(num_classes=10),
}


def profile(model: str, size: int) -> Profile:
    with torch.device("meta"):
        made = MODELS[model]()
    return Profile(made, (3, size, size), workspace=no_workspace)


def judged(known: Profile, plan: Plan, batch: int, device: Device = V100) -> Prediction:
    """With a balance by time."""

    def seconds(costs: Any) -> float:
        parts = (costs.operators(None), costs.operators(0))
        return sum(device.seconds(op) * n for part in parts for op, n in part.items())

    if plan.balance is None:
        speeds = [plan.tiles(stage) for stage in range(plan.split_size)]
        plan = replace(plan, balance=balanced(known.layer_costs(seconds), plan.split_size, speeds))
    return predicted(known, plan, Setting(batch, device, LASSEN.for_ranks(plan.world_size)))


# ── speed-up ─────────────────────────────────────────────────────────────────────────────────────


def rivals(ranks: int, batch: int) -> Iterator[tuple[str, Plan]]:
    """On `ranks` devices, at least."""
    yield "layer", Plan(split_size=ranks, schedule="layer")
    yield "GPipe", Plan(split_size=ranks, parts=batch, schedule="gpipe")
    yield "ZB-H1", Plan(split_size=ranks, parts=batch, schedule="zb-h1")
    tiles = ranks - 1
    yield "spatial + layer", Plan(split_size=2, num_spatial_parts=tiles, schedule="layer")
    yield "spatial, all", Plan(num_spatial_parts=ranks)
    yield (
        "spatial + 1F1B",
        Plan(split_size=2, num_spatial_parts=tiles, parts=batch, schedule="1f1b"),
    )
    yield "spatial, fused", Plan(num_spatial_parts=ranks, halo_d2=True, fused_layers=2)


def speedups(ranks: int = 5) -> list[dict[str, Any]]:
    """Five GPUs, as in the original's plots, and a batch of two."""
    rows = []
    print("| model | image | scheme | s a step | images/s | peak GB | over layer | over GPipe |")
    print("|---|---|---|---|---|---|---|---|")
    for model in ("amoebanet", "resnet"):
        for size in (1024, 2048, 4096, 8192, 16384):
            known, batch = profile(model, size), 2
            found = {name: judged(known, plan, batch) for name, plan in rivals(ranks, batch)}
            for name, p in found.items():
                over = found["layer"].seconds / p.seconds, found["GPipe"].seconds / p.seconds
                print(
                    f"| {model} | {size}² | {name} | {p.seconds:.3f} | {p.images_per_second:.2f} | "
                    f"{p.peak / 1e9:.1f} | {over[0]:.2f}× | {over[1]:.2f}× |",
                    flush=True,
                )
                rows.append(
                    {"model": model, "size": size, "scheme": name, "seconds": p.seconds}
                    | {"peak": p.peak, "over layer": over[0], "over GPipe": over[1]}
                )
    return rows


# ── weak scaling ─────────────────────────────────────────────────────────────────────────────────


def scaling() -> list[dict[str, Any]]:
    """The same for every replica, and more and more replicas."""
    cases = {
        "resnet 1024², 4 stages, 1F1B": (
            "resnet",
            1024,
            Plan(split_size=4, parts=8, schedule="1f1b"),
        ),
        "resnet 2048², 16 tiles": ("resnet", 2048, Plan(num_spatial_parts=16)),
        "amoebanet 1024², GEMS of 4": (
            "amoebanet",
            1024,
            Plan(split_size=4, schedule="gems", times=4),
        ),
    }
    rows = []
    print("| | GPUs | s a step | efficiency | simulated in |\n|---|---|---|---|---|")
    for name, (model, size, plan) in cases.items():
        known, one = profile(model, size), None
        for ranks in (16, 128, 1024, 2048, 16384):
            many = replace(plan, replicas=ranks // plan.world_size)
            started = time.perf_counter()
            batch = many.micro_batches
            p = judged(known, many, batch)
            took = time.perf_counter() - started
            one = one or p.seconds
            print(
                f"| {name} | {many.world_size:,} | {p.seconds:.4f} | {one / p.seconds:.2%} | "
                f"{took:.1f} s |",
                flush=True,
            )
            rows.append(
                {"case": name, "gpus": many.world_size, "seconds": p.seconds}
                | {"efficiency": one / p.seconds, "simulated in": took}
            )
    return rows


# ── what fits ────────────────────────────────────────────────────────────────────────────────────

SCHEMES: dict[str, Plan] = {
    "data": Plan(),
    "layers, 4": Plan(split_size=4, schedule="layer"),
    "layers, 16": Plan(split_size=16, schedule="layer"),
    "tiles, 4": Plan(num_spatial_parts=4),
    "tiles, 16": Plan(num_spatial_parts=16),
    "tiles, 64": Plan(num_spatial_parts=64),
    "tiles, 16, computed again": Plan(num_spatial_parts=16, checkpoint_activations=True),
    "tiles, 64, computed again": Plan(num_spatial_parts=64, checkpoint_activations=True),
}
SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def fits(path: Path) -> list[dict[str, Any]]:
    """Peak memory of each scheme at each size, for one image, by dry runs."""
    rows = []
    for size in SIZES:
        known = profile("resnet50", size)
        for name, plan in SCHEMES.items():
            p = judged(known, plan, 1)
            rows.append({"scheme": name, "size": size, "peak": p.peak})
            print(f"{name:28s} {size:6d}² {p.peak / 1e9:10.1f} GB", flush=True)
    _draw(rows, path)
    return rows


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    limits = (16, 32, 80)
    names = list(SCHEMES)
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axis = figure.subplots()
    peaks = {(row["scheme"], row["size"]): row["peak"] / 1e9 for row in rows}
    grid = [[sum(peaks[n, s] > limit for limit in limits) for s in SIZES] for n in names]
    colours = ListedColormap(["#4d8b4b", "#a9cf8f", "#f0d98c", "#d98c7a"])
    axis.imshow(grid, aspect="auto", cmap=colours, vmin=0, vmax=3)
    for y, name in enumerate(names):
        for x, size in enumerate(SIZES):
            peak = peaks[name, size]
            text = f"{peak:.1f}" if peak < 100 else f"{peak:,.0f}"
            axis.text(x, y, text, ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(SIZES)), [f"{size}²" for size in SIZES])
    axis.set_yticks(range(len(names)), names)
    axis.set_title(
        "ResNet-50, one image: GB of the fullest rank (fits 16, 32, 80 GB, none)", fontsize=10
    )
    labels = ("16 GB", "32 GB", "80 GB", "none of them")
    for colour, label in zip(colours.colors, labels, strict=True):
        axis.scatter([], [], color=colour, marker="s", label=label)
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, title="fits into")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("speedup", "scaling", "fits"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, default=Path("what_fits.png"))
    options = parser.parse_args()
    started = time.perf_counter()
    if options.what == "speedup":
        rows = speedups()
    elif options.what == "scaling":
        rows = scaling()
    else:
        rows = fits(options.picture)
    print(f"\n{time.perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


main()
