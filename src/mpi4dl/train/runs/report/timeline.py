"""A traced step as SVG: a row for each rank, and what it did when."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from .charts import KINDS

_WIDTH, _LEFT, _ROW = 1150, 58, 30


def timeline(trace: Mapping[str, Any]) -> str:
    """Above in each row what the schedule says, below what was communicated meanwhile."""
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    if not spans:
        return ""
    last = max(event["ts"] + event["dur"] for event in spans)
    ranks = 1 + max(event["pid"] for event in spans)
    scale, height = (_WIDTH - _LEFT - 10) / last, _ROW * ranks + 30
    parts = [
        f'<text x="{_LEFT - 8}" y="{_ROW * rank + 16}" class="end">rank {rank}</text>'
        for rank in range(ranks)
    ]
    for event in spans:
        x, width = _LEFT + event["ts"] * scale, max(0.4, event["dur"] * scale)
        y = _ROW * event["pid"] + (4 if event["tid"] == 0 else 18)
        tall = 14 if event["tid"] == 0 else 8
        title = f"{event['name']}: {event['dur'] / 1000:.3f} ms"
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{tall}" '
            f'fill="{KINDS[event["cat"]]}"><title>{escape(title)}</title></rect>'
        )
    parts.append(
        f'<text x="{_LEFT}" y="{height - 8}">0</text>'
        f'<text x="{_WIDTH - 10}" y="{height - 8}" class="end">{last / 1000:.1f} ms</text>'
    )
    keys = "".join(
        f'<span class="key"><i style="background:{KINDS[name]}"></i>{name}</span>'
        for name in ("compute", "halo", "transfer", "gradients")
    )
    return (
        f'<figure class="wide"><figcaption>{keys}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="timeline">{"".join(parts)}</svg></figure>'
    )
