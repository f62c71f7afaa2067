"""The table as bars, in the original's manner: a chart for each model and image size, a group of
bars for each batch size. Beside each, what the rank that sends most sends in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLOURS = {"layer": "#8a8f98", "square": "#2f6fb3", "vertical": "#d98b2b", "horizontal": "#3f9a5f"}
KINDS = {
    "halo": "halo", "statistics": "statistics", "transfer": "between stages",
    "gradients": "gradients",
}  # fmt: skip
SHADES = dict(zip(KINDS, ("#c0504d", "#e8b7b5", "#7e6bb0", "#c9c9c9"), strict=True))


def draw(records: Sequence[dict[str, Any]], path: str) -> None:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(r["model"] for r in records))
    sizes = {m: sorted({r["image_size"] for r in records if r["model"] == m}) for m in models}
    columns = max(map(len, sizes.values()))
    figure = Figure(figsize=(1 + 6.6 * columns, 1 + 3.7 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 2 * columns, squeeze=False)
    for row, model in zip(axes, models, strict=True):
        for number in range(columns):
            pair = row[2 * number], row[2 * number + 1]
            if number >= len(sizes[model]):
                for axis in pair:
                    axis.set_axis_off()
                continue
            size = sizes[model][number]
            some = [r for r in records if (r["model"], r["image_size"]) == (model, size)]
            _rates(pair[0], some)
            _volumes(pair[1], some)
    _legends(figure, list(dict.fromkeys(r["mode"] for r in records)))
    figure.savefig(path, dpi=110)


def _groups(records: Sequence[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    """Where the bar of each record stands."""
    batches = sorted({r["batch_size"] for r in records})
    modes = list(dict.fromkeys(r["mode"] for r in records))
    width = 1 / (len(modes) + 1.2)
    return [
        (
            batches.index(r["batch_size"])
            + (modes.index(r["mode"]) - (len(modes) - 1) / 2) * width,
            r,
        )
        for r in records
    ]


def _rates(axis: Any, records: Sequence[dict[str, Any]]) -> None:
    modes = len({r["mode"] for r in records})
    for x, record in _groups(records):
        rate, slices = record["images_per_second"], record["mode"].partition(",")[0]
        fused = "D2" in record["mode"]
        style = {"color": COLOURS[slices], "edgecolor": "white", "hatch": "///" if fused else None}
        axis.bar(x, rate, 1 / (modes + 1.2), **style)
        axis.text(x, rate, f" {rate:.3g}", ha="center", va="bottom", rotation=90, fontsize=7)
    axis.set_ylim(0, 1.18 * max(r["images_per_second"] for r in records))
    first = records[0]
    axis.set_title(f"{first['model']} {first['image_size']}²: images per second", fontsize=10)
    _below(axis, records)


def _volumes(axis: Any, records: Sequence[dict[str, Any]]) -> None:
    modes = len({r["mode"] for r in records})
    for x, record in _groups(records):
        most = max(record["predicted_bytes"], key=lambda sent: sum(sent.values()))
        bottom = 0.0
        for kind in KINDS:
            height = most[kind] / 1e6
            style = {"color": SHADES[kind], "edgecolor": "white", "linewidth": 0.5}
            axis.bar(x, height, 1 / (modes + 1.2), bottom=bottom, **style)
            bottom += height
        axis.text(x, bottom, f" {_short(record['mode'])}", ha="center", va="bottom", rotation=90,
                  fontsize=7)  # fmt: skip
    axis.set_ylim(0, 1.25 * axis.get_ylim()[1])
    axis.set_title("predicted MB that a rank sends in a step", fontsize=10)
    _below(axis, records)


def _short(mode: str) -> str:
    return mode.replace(", D2", " D2")


def _below(axis: Any, records: Sequence[dict[str, Any]]) -> None:
    batches = sorted({r["batch_size"] for r in records})
    axis.set_xticks(range(len(batches)), [f"batch {n}" for n in batches])
    axis.tick_params(axis="x", length=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)


def _legends(figure: Any, modes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    bars = [
        Patch(
            facecolor=COLOURS[mode.partition(",")[0]],
            edgecolor="white",
            hatch="///" if "D2" in mode else None,
            label=mode,
        )
        for mode in modes
    ]
    kinds = [Patch(facecolor=SHADES[kind], label=name) for kind, name in KINDS.items()]
    wide = figure.get_figwidth() > 10
    for where, handles in (("left", bars), ("right", kinds)):
        columns = len(handles) if wide else (len(handles) + 1) // 2
        place = f"outside lower {where}"
        figure.legend(handles=handles, loc=place, ncols=columns, frameon=False, fontsize=8)
