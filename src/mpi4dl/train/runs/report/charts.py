"""Line charts and stacked bars as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 34
_MOST = 800
"""Points of a line; of more, each point is a mean of several."""

KINDS = {
    "compute": "#3b82f6",
    "halo": "#f97316",
    "transfer": "#10b981",
    "gradients": "#a855f7",
    "waiting": "#cbd5e1",
    "other": "#64748b",
}
"""The colours of what ranks spend their time on."""

LINES = ("#2563eb", "#dc2626", "#059669", "#9333ea", "#d97706", "#0891b2")


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]


def line_chart(lines: Sequence[Line], label: str) -> str:
    """Several lines over the steps; empty if none has a point."""
    shown = [Line(line.name, _fewer(_finite(line.points))) for line in lines]
    points = [point for line in shown for point in line.points]
    if not points:
        return ""
    across = _Axis([x for x, _ in points], _LEFT, WIDTH - _RIGHT, whole=True)
    down = _Axis([y for _, y in points], HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(across, down)]
    for number, line in enumerate(shown):
        colour = LINES[number % len(LINES)]
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line.points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        if len(line.points) < 40:
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="2.6" fill="{colour}"/>'
                for x, y in line.points
            ]
    named = {line.name: LINES[number % len(LINES)] for number, line in enumerate(shown)}
    return _figure(label, "".join(parts), HEIGHT, named)


def stacked_bars(rows: Sequence[Mapping[str, float]], unit: str, label: str) -> str:
    """A bar for each rank, made of its parts in the order of `KINDS`."""
    if not rows:
        return ""
    height = 18 * len(rows) + 34
    longest = max(sum(row.values()) for row in rows) or 1.0
    across = _Axis([0.0, longest], _LEFT, WIDTH - _RIGHT)
    parts = []
    for number, row in enumerate(rows):
        y, x = 6 + 18 * number, 0.0
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 11}" class="end">rank {number}</text>')
        for name, value in row.items():
            start, stop = across(x), across(x + value)
            colour = KINDS.get(name, LINES[0])
            parts.append(
                f'<rect x="{start:.1f}" y="{y}" width="{max(0.0, stop - start):.1f}" height="13" '
                f'fill="{colour}"><title>{escape(name)}: {value:.4g} {unit}</title></rect>'
            )
            x += value
    for tick in across.ticks:
        parts.append(
            f'<text x="{across(tick):.1f}" y="{height - 10}" class="mid">{_number(tick)}</text>'
        )
    names = dict.fromkeys(name for row in rows for name in row)
    named = {name: KINDS.get(name, LINES[0]) for name in names} if len(names) > 1 else {}
    return _figure(f"{label} ({unit})", "".join(parts), height, named)


class _Axis:
    """From values to places in the picture."""

    def __init__(self, values: Sequence[float], start: float, stop: float, whole: bool = False):
        low, high = min(values), max(values)
        if low == high:
            low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
        self.ticks = [tick for tick in ticks(low, high) if not whole or tick == int(tick)]
        self._low, self._high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self.start + share * (self.stop - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values, about so many."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _grid(across: _Axis, down: _Axis) -> str:
    parts = []
    for tick in down.ticks:
        y = down(tick)
        parts.append(
            f'<line x1="{across.start}" x2="{across.stop}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="end">{_number(tick)}</text>'
        )
    for tick in across.ticks:
        parts.append(
            f'<text x="{across(tick):.1f}" y="{HEIGHT - 14}" class="mid">{_number(tick)}</text>'
        )
    return "".join(parts)


def _figure(label: str, inside: str, height: int, named: Mapping[str, str]) -> str:
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in named.items()
    )
    return (
        f'<figure><figcaption>{escape(label)} {keys}</figcaption><svg role="img" '
        f'viewBox="0 0 {WIDTH} {height}" aria-label="{escape(label)}">{inside}</svg></figure>'
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if isinstance(y, (int, float)) and math.isfinite(y)]


def _fewer(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    size = -(-len(points) // _MOST)
    if size <= 1:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _number(value: float) -> str:
    return f"{value:.10g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else f"{value:.2g}"
