"""The page: what a run's folder has, in one HTML file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ....errors import UsageError
from ..records import CONFIGURATION, LOG, PICTURES, THUMBNAIL, TRACE, read_log
from .charts import KINDS, Line, line_chart, stacked_bars
from .tile_map import picture, tile_map
from .timeline import timeline

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #0f172a; background: #f8fafc; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 28px 0 8px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.facts div { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; padding: 10px 14px; }
.facts b { display: block; font-size: 20px; } .facts span { color: #64748b; font-size: 13px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 14px; }
figure { margin: 0; padding: 10px; background: #fff; border: 1px solid #e2e8f0;
  border-radius: 8px; }
figcaption { font-size: 13px; color: #475569; } svg, img { width: 100%; display: block; }
figure.map { max-width: 480px; } img { image-rendering: pixelated; }
svg text { font: 11px system-ui, sans-serif; fill: #475569; }
svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
svg .grid { stroke: #e2e8f0; }
svg text.tile { font-size: 22px; font-weight: 700; text-anchor: middle; fill: #fff;
  stroke: #0f172a; stroke-width: 3px; paint-order: stroke; }
.key { margin-left: 10px; white-space: nowrap; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 4px; }
pre { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; padding: 12px;
  overflow: auto; font: 12px/1.45 ui-monospace, monospace; }
"""


def report(run: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a run's folder; its name."""
    folder = Path(run)
    if not (folder / LOG).is_file():
        raise UsageError(f"{folder} is no folder of a run: it has no {LOG}")
    file = folder / "report.html" if output is None else Path(output)
    try:
        file.write_text(page(folder), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    return file


def page(folder: Path) -> str:
    log = read_log(folder)
    body = "\n".join(_body(folder, log))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(folder.name)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _body(folder: Path, log: Sequence[dict[str, Any]]) -> Iterator[str]:
    steps = [line for line in log if line["kind"] == "step"]
    evaluations = [line for line in log if line["kind"] == "evaluation"]
    start = _last(log, "start") or {}
    yield f"<h1>{escape(start.get('model', folder.name))}</h1>"
    yield f"<p>{escape(str(folder))}: {escape(_state(log))}</p>"
    yield f'<div class="facts">{"".join(_facts(steps, evaluations, log))}</div>'
    yield "<h2>Training</h2>"
    yield f'<div class="grid2">{"".join(_charts(steps, evaluations))}</div>'
    ranks = (_last(log, "ranks") or {}).get("ranks", [])
    if ranks:
        yield "<h2>Ranks</h2>"
        parts = [{name: rank[name] for name in KINDS} for rank in ranks]
        memory = [{"peak": rank["peak_mib"]} for rank in ranks]
        times = stacked_bars(parts, "s", "a step, where its time went")
        bars = stacked_bars(memory, "MiB", "peak memory of each rank")
        read = ""
        if all("read_mib" in rank for rank in ranks):
            files = [{"read": rank["read_mib"]} for rank in ranks]
            read = stacked_bars(files, "MiB", "read from files by each rank")
        yield f'<div class="grid2">{times}{bars}{read}</div>'
    trace = folder / TRACE
    if trace.exists():
        yield "<h2>A step</h2>"
        yield timeline(json.loads(trace.read_text(encoding="utf-8")))
    yield from _pictures(folder, start)
    yield "<h2>Configuration</h2>"
    if "plan" in start:
        yield f"<pre>{escape(start['plan'])}</pre>"
    if (folder / CONFIGURATION).exists():
        yield f"<pre>{escape((folder / CONFIGURATION).read_text(encoding='utf-8'))}</pre>"


def _pictures(folder: Path, start: dict[str, Any]) -> Iterator[str]:
    if start.get("layout"):
        yield "<h2>Tiles</h2>"
        yield tile_map(start["layout"], folder / THUMBNAIL)
    if (folder / PICTURES).exists():
        yield "<h2>The last evaluation: image, labels, prediction</h2>"
        yield picture(folder / PICTURES, "image, labels, prediction")


def _last(log: Sequence[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((line for line in reversed(log) if line["kind"] == kind), None)


def _state(log: Sequence[dict[str, Any]]) -> str:
    if log and log[-1]["kind"] == "end":
        return str(log[-1]["reason"])
    return "it has not ended, or was interrupted"


def _facts(
    steps: Sequence[dict[str, Any]],
    evaluations: Sequence[dict[str, Any]],
    log: Sequence[dict[str, Any]],
) -> Iterator[str]:
    facts: dict[str, str] = {}
    if steps:
        rate = statistics.median(line["samples_per_second"] for line in steps)
        facts["steps"] = f"{steps[-1]['step']:,}"
        facts["loss of the last step"] = f"{float(steps[-1]['loss']):.4g}"
        facts["images per second (median)"] = f"{rate:.3g}"
    if evaluations:
        for name, value in evaluations[-1].items():
            if name not in ("kind", "step", "time"):
                facts[f"{name}, evaluated"] = f"{float(value):.4g}"
    ranks = (_last(log, "ranks") or {}).get("ranks", [])
    if ranks:
        facts["ranks"] = str(len(ranks))
        facts["peak MiB of a rank"] = f"{max(rank['peak_mib'] for rank in ranks):,.0f}"
        if all("read_mib" in rank for rank in ranks):
            facts["MiB read by a rank, at most"] = f"{max(r['read_mib'] for r in ranks):,.3g}"
    for name, value in facts.items():
        yield f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"


def _charts(
    steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]
) -> Iterator[str]:
    def of(lines: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
        return [(line["step"], line[name]) for line in lines if name in line]

    losses = [Line("training", of(steps, "loss")), Line("evaluation", of(evaluations, "loss"))]
    yield line_chart([line for line in losses if line.points], "loss")
    names = dict.fromkeys(name for line in evaluations for name in line)
    metrics = [name for name in names if name not in ("kind", "step", "time", "loss")]
    yield line_chart([Line(name, of(evaluations, name)) for name in metrics], "metrics")
    yield line_chart([Line("images/s", of(steps, "samples_per_second"))], "images per second")
    yield line_chart([Line("lr", of(steps, "lr"))], "learning rate")
