"""What a search has found, as text, as data and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import PlanError
from ..pipeline.plan import Plan
from .prediction import Prediction
from .search import Found

_GB = 1e9
_SHOWN = 6


def text(found: Found) -> str:
    best = found.best
    return "\n".join(
        [
            str(best.plan),
            "",
            *_figures(best),
            "",
            f"why this one, of {len(found.tried)} that were tried:",
            *_rows(found.fitting[:_SHOWN]),
            *_refused(found),
            "",
            "time against memory (nothing tried is better in both):",
            *_rows(found.front),
        ]
    )


def _figures(p: Prediction) -> Iterator[str]:
    rate = f"{p.images_per_second:.3g} images/s"
    yield f"predicted: {p.seconds:.3g} s a step, {rate}, bubble {p.bubble:.1%}"
    sent = ", ".join(f"{what} {size / _GB:.3g} GB" for what, size in p.links.items() if size)
    yield f"the busiest rank sends, each step: {sent or 'nothing'}"
    yield ""
    names = list(asdict(p.usage[0]))
    lines = [["ranks", "peak GB", *names]]
    for ranks, usage in zip(p.ranks, p.usage, strict=True):
        parts = [f"{size / _GB:.2f}" for size in asdict(usage).values()]
        lines.append([_span(ranks), f"{usage.total / _GB:.2f}", *parts])
    yield from _table(lines)


def _span(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


def words(plan: Plan) -> str:
    """A plan in one line, without its balance."""
    text = repr(plan).removeprefix("Plan(").removesuffix(")")
    return ", ".join(part for part in _arguments(text) if not part.startswith("balance")) or "alone"


def _arguments(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            yield text[start:place].strip()
            start = place + 1
    if text:
        yield text[start:].strip()


def _rows(predictions: Sequence[Prediction]) -> list[str]:
    lines = [["s a step", "images/s", "peak GB", "bubble", "ranks", "plan"]]
    for p in predictions:
        figures = [f"{p.seconds:.3g}", f"{p.images_per_second:.3g}", f"{p.peak / _GB:.1f}"]
        lines.append([*figures, f"{p.bubble:.0%}", str(p.plan.world_size), words(p.plan)])
    return _table(lines)


def _refused(found: Found) -> Iterator[str]:
    """The fastest of each kind that does not fit, and what cannot be."""
    kinds: dict[str, list[str]] = {}
    for refused in found.refused:
        kinds.setdefault(kind(refused.plan), [refused.why, words(refused.plan)])
    if kinds:
        yield ""
        yield "refused, of each kind the fastest:"
        yield from _table([[name, *row] for name, row in kinds.items()])


def kind(plan: Plan) -> str:
    """What a plan is, in a word or two."""
    parts = []
    if plan.spatial_size:
        parts.append("tiles")
    if plan.split_size > 1:
        parts.append("stages" if plan.parts * plan.times > 1 else "layers")
    if plan.replicas * plan.local_dp > 1:
        parts.append("data")
    return " + ".join(parts) or "one rank"


def _table(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


# ── data and picture ─────────────────────────────────────────────────────────────────────────────


def data(found: Found) -> dict[str, Any]:
    return {
        "devices": found.wish.devices,
        "memory": found.wish.memory,
        "batch": found.wish.batch,
        "device": found.wish.device.name,
        "best": _prediction(found.best),
        "fitting": [_prediction(p) for p in found.fitting],
        "front": [_prediction(p) for p in found.front],
        "refused": [{"plan": asdict(r.plan), "why": r.why} for r in found.refused],
    }


def _prediction(p: Prediction) -> dict[str, Any]:
    return {
        "plan": asdict(p.plan),
        "seconds": p.seconds,
        "images_per_second": p.images_per_second,
        "bubble": p.bubble,
        "peak": p.peak,
        "ranks": [
            {"ranks": ranks, **asdict(usage)} for ranks, usage in zip(p.ranks, p.usage, strict=True)
        ],
        "links": dict(p.links),
    }


def picture(found: Found, path: str | Path) -> None:
    """Every plan that was tried, by time and memory, and the front."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError("pictures need matplotlib: pip install 'mpi4dl[plot]'") from error
    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    axis = figure.subplots()
    groups: dict[str, list[Prediction]] = {}
    for p in found.tried:
        groups.setdefault(kind(p.plan), []).append(p)
    for name, group in sorted(groups.items()):
        axis.scatter([p.seconds for p in group], [p.peak / _GB for p in group], s=14, label=name)
    front = found.front
    axis.step(
        [p.seconds for p in front], [p.peak / _GB for p in front], where="post", color="black", lw=1
    )
    axis.axhline(found.wish.memory / _GB, color="#b03a2e", lw=1, ls="--")
    axis.set(
        xscale="log", yscale="log", xlabel="seconds of a step", ylabel="GB of the fullest rank"
    )
    best = found.best
    axis.scatter([best.seconds], [best.peak / _GB], s=120, facecolors="none", edgecolors="black")
    axis.legend(fontsize=8, frameon=False, title="line: the front; dashed: the limit; ring: chosen")
    axis.grid(alpha=0.2)
    figure.savefig(path, dpi=130)
