"""A plan as a user reads it: what was decided, a line for each stage, and the rank map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..comm.mesh import Mesh
from ..schedule import SCHEDULES
from ..schedule.schedule import counted
from .rank_map import grid_of, rank_map
from .settings import Settings, StageKind


def plan_text(settings: Settings, mesh: Mesh, sum_of_ranks: str) -> str:
    terms = f" ({sum_of_ranks})" if "=" in sum_of_ranks else ""
    title = f"{counted(mesh.stages, 'stage')} on {counted(mesh.size, 'rank')}{terms}"
    facts = "\n".join(f"  {name:<14}{value}" for name, value in _facts(settings, mesh))
    return "\n\n".join([f"{title}\n{facts}", _table(settings, mesh), rank_map(settings, mesh)])


def _facts(settings: Settings, mesh: Mesh) -> Iterator[tuple[str, str]]:
    yield "schedule", settings.schedule
    yield "micro-batches", _micro_batches(settings)
    if SCHEDULES[settings.schedule].bidirectional and mesh.directions == 1:
        yield "directions", "1: with times 1 nothing is mirrored; times 2 or more uses both"
    if settings.halo_d2:
        cut = any(settings.kind(s) is StageKind.SPATIAL for s in range(mesh.stages))
        fused = f"fused over {counted(settings.fused_layers, 'layer')}"
        yield "halos", fused if cut else "none: no stage is cut"
    if settings.checkpoint_activations:
        layers = counted(int(settings.checkpoint_activations), "layer")
        yield "checkpoints", f"activations are computed again, {layers} at a time"
    if settings.precision != "fp32":
        yield "precision", f"autocast to {settings.precision}"
    if settings.master_comm_opt:
        yield "gradients", "exchanged between mirrored ranks"


def _micro_batches(settings: Settings) -> str:
    factors = {
        "replica": settings.replicas,
        "batch": settings.times,
        "part": settings.parts,
    }
    total = settings.replicas * settings.times * settings.parts
    shown = [
        counted(n, what, "es" if what == "batch" else "s") for what, n in factors.items() if n > 1
    ]
    return f"{total} a step" + (f": {' × '.join(shown)}" if len(shown) > 1 else "")


def _table(settings: Settings, mesh: Mesh) -> str:
    header = ["stage", "ranks", "each rank has", *(["mirrored"] if mesh.directions > 1 else [])]
    if settings.balance:
        header.insert(1, "layers")
    rows = [header]
    for stage in range(mesh.stages):
        row = [str(stage), _span(mesh.ranks(0, 0, stage)), _share(settings, stage)]
        if mesh.directions > 1:
            row.append(_span(mesh.ranks(0, 1, stage)))
        if settings.balance:
            row.insert(1, str(settings.balance[stage]))
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _share(settings: Settings, stage: int) -> str:
    kind, count = settings.kind(stage), settings.tiles(stage)
    if kind is StageKind.WHOLE:
        return "everything"
    if kind is StageKind.BATCH:
        return f"1/{count} of each micro-batch"
    method = settings.slice_methods[stage]
    grid = "×".join(map(str, grid_of(settings, stage)))
    named = f"{method} {grid}" if method.isalpha() else grid
    return f"1/{count} of each image, {named}"


def _span(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
