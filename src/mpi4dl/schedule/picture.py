"""Timelines as a picture, one below the other: what was planned, and what happened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ScheduleError
from .action import Kind
from .timeline import Span, Timeline

_COLOURS = {
    Kind.FORWARD: ("#7aa6d8", "#3d6ea5"),
    Kind.BACKWARD: ("#8cc08a", "#4d8b4b"),
    Kind.INPUT: ("#8cc08a", "#4d8b4b"),
    Kind.WEIGHT: ("#d9c36a", "#a98f2f"),
}
"""For either direction."""

_NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward: input",
    Kind.WEIGHT: "backward: weights",
}


def picture(timelines: Mapping[str, Timeline], path: Path | str, unit: str = "") -> None:
    """Draw timelines, by their titles, into a file whose ending says which format."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ScheduleError("pictures need matplotlib: pip install 'mpi4dl[plot]'") from error
    rows = [len(timeline.spans) for timeline in timelines.values()]
    figure = Figure(figsize=(12, 0.34 * sum(rows) + 0.9 * len(rows) + 0.5), layout="constrained")
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axis, (title, timeline) in zip(axes, timelines.items(), strict=True):
        _draw(axis, timeline)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel(unit)
    found = {
        (s.action.kind, s.action.direction)
        for timeline in timelines.values()
        for spans in timeline.spans
        for s in spans
        if s.action.kind in _COLOURS
    }
    kinds = [(kind, d) for kind in _COLOURS for d in (0, 1) if (kind, d) in found]
    figure.legend(
        handles=[
            Patch(color=_COLOURS[kind][d], label=_NAMES[kind] + (", mirrored" if d else ""))
            for kind, d in kinds
        ],
        loc="outside lower center",
        ncols=min(4, len(kinds)),
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path, dpi=150)


def _draw(axis: Any, timeline: Timeline) -> None:
    starts = [span.start for spans in timeline.spans for span in spans]
    origin = min(starts, default=0.0)
    for row, spans in enumerate(timeline.spans):
        for span in spans:
            if span.action.kind in _COLOURS:
                _bar(axis, row, span, origin, timeline.makespan)
    axis.set_ylim(len(timeline.spans) - 0.45, -0.55)
    axis.set_yticks(range(len(timeline.spans)))
    axis.tick_params(labelsize=8)
    axis.set_xlim(0, timeline.makespan or 1)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _bar(axis: Any, row: int, span: Span, origin: float, whole: float) -> None:
    colour = _COLOURS[span.action.kind][span.action.direction]
    left = span.start - origin
    axis.barh(row, span.duration, left=left, height=0.8, color=colour, edgecolor="white", lw=0.5)
    if span.duration > 0.018 * whole:
        text = str(span.action).replace("'", "")
        centre = left + span.duration / 2
        ink = "white" if span.action.direction else "#1d2b3a"
        axis.text(centre, row, text, ha="center", va="center", fontsize=6, color=ink)
