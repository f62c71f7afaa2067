"""A sweep as curves: latency and bandwidth over the size of the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def draw(runs: Sequence[dict[str, Any]], path: str) -> None:
    """A column for each slice method; latency above, bandwidth below; a line for each halo."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(run["slice_method"] for run in runs))
    halos = sorted({run["halo_len"] for run in runs})
    shades = colormaps["viridis"].resampled(len(halos) + 1)
    colours = {halo: shades(number) for number, halo in enumerate(halos)}
    figure = Figure(figsize=(1.2 + 3.6 * len(methods), 6.4), layout="constrained")
    grid = figure.subplots(2, len(methods), sharex=True, sharey="row", squeeze=False)
    for (latency, bandwidth), method in zip(grid.T, methods, strict=True):
        latency.set_title(method)
        for halo in halos:
            chosen = [r for r in runs if (r["slice_method"], r["halo_len"]) == (method, halo)]
            chosen.sort(key=lambda run: run["image_size"])
            found = [run["results"][0] for run in chosen]
            sizes = [(run["image_size"][0] * run["image_size"][1]) ** 0.5 for run in chosen]
            name, colour = f"halo {halo}", colours[halo]
            latency.plot(sizes, [r["median_ms"] for r in found], "o-", color=colour, label=name)
            latency.plot(sizes, [r["min_ms"] for r in found], ":", color=colour, alpha=0.8)
            rates = [max(r["bandwidth_mb_per_s"]) for r in found]
            bandwidth.plot(sizes, rates, "o-", color=colour)
            fastest = [max(r["received_bytes"]) / r["min_ms"] / 1e3 for r in found]
            bandwidth.plot(sizes, fastest, ":", color=colour, alpha=0.8)
        sides = sorted({(run["image_size"][0] * run["image_size"][1]) ** 0.5 for run in runs})
        _scale(latency, sides)
        _scale(bandwidth, sides)
        bandwidth.set_xlabel("side of the image, pixels")
    grid[0, 0].set_ylabel("latency, ms")
    grid[1, 0].set_ylabel("received by a rank, MB/s")
    lines, names = grid[0, 0].get_legend_handles_labels()
    fastest_line = Line2D([], [], linestyle=":", color="grey")
    figure.legend(
        [*lines, fastest_line],
        [*names, "fastest iteration"],
        loc="outside lower center",
        ncols=len(halos) + 1,
        frameon=False,
    )
    figure.suptitle(_title(runs[0]), fontsize=10)
    figure.savefig(path, dpi=150)


def _scale(axis: Any, sides: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sides, [f"{side:.0f}" for side in sides])
    axis.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def _title(run: dict[str, Any]) -> str:
    return (
        f"Halo exchange: {run['ranks']} ranks on {run['cores']} cores, {run['transport']}, "
        f"{run['in_channels']} channels, batch {run['batch_size']}, {run['device']}"
    )
