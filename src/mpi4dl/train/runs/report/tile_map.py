"""Which rank has which part of an image, drawn over one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .charts import LINES

_SIDE = 460


def picture(file: Path, label: str) -> str:
    """A PNG within the page."""
    data = b64encode(file.read_bytes()).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt="{label}"></figure>'


def tile_map(layout: Mapping[str, Any], thumbnail: Path) -> str:
    """`layout` has the size of the image and the box of each rank in the first stage, or null."""
    rows, columns = layout["size"]
    scale = _SIDE / max(rows, columns)
    width, height = columns * scale, rows * scale
    parts = []
    if thumbnail.exists():
        data = b64encode(thumbnail.read_bytes()).decode()
        parts.append(
            f'<image href="data:image/png;base64,{data}" width="{width:.1f}" '
            f'height="{height:.1f}" preserveAspectRatio="none"/>'
        )
    owners: dict[tuple[int, ...], list[int]] = {}
    for rank, box in enumerate(layout["boxes"]):
        if box is not None:
            owners.setdefault(tuple(box), []).append(rank)
    for number, ((top, bottom, left, right), ranks) in enumerate(owners.items()):
        colour = LINES[number % len(LINES)]
        x, y, w, h = (n * scale for n in (left, top, right - left, bottom - top))
        name = ", ".join(map(str, ranks))
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{colour}" '
            f'fill-opacity="0.12" stroke="{colour}" stroke-width="3" class="tile"/>'
            f'<text x="{x + w / 2:.1f}" y="{y + h / 2 + 8:.1f}" class="tile">{name}</text>'
        )
    return (
        f'<figure class="map"><svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="tiles">{"".join(parts)}</svg><figcaption>an image of {rows}×{columns} pixels,'
        " and the ranks of the first stage</figcaption></figure>"
    )
