"""The halo exchange over image sizes, halo lengths and slice methods, as curves.

    python benchmarks/communication/halo/sweep.py --in-channels 64 --picture halo.png

All configurations run in one start of the ranks. Lines are medians, dotted ones the fastest
iterations. Bandwidth is that of the rank that receives most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from halo_benchmark import HEADER, measure, record, start, transport
from halo_options import common_parser, image_size, layout_for, parsed, refuse
from halo_work import exchange

from mpi4dl import Layout

Configuration = tuple[argparse.Namespace, Layout]


def sweep_parser() -> argparse.ArgumentParser:
    parser = common_parser(__doc__)
    parser.add_argument(
        "--image-sizes", type=image_size, nargs="+", default=[(n, n) for n in (64, 256, 1024)]
    )
    parser.add_argument("--halo-lens", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--slice-methods", nargs="+", default=["square", "vertical", "horizontal"])
    parser.add_argument("--picture", type=Path, metavar="PNG", help="needs mpi4dl[plot]")
    return parser


def configurations(options: argparse.Namespace) -> Iterator[Configuration]:
    """Every one, checked."""
    for method, halo, size in product(
        options.slice_methods, options.halo_lens, options.image_sizes
    ):
        one = argparse.Namespace(
            **vars(options),
            image_size=size,
            halo_len=halo,
            slice_method=method,
            backward=False,
            with_tile=False,
        )
        yield one, layout_for(one)


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """A column for each slice method; latency above, bandwidth below; a line for each halo."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(run["slice_method"] for run in runs))
    halos = sorted({run["halo_len"] for run in runs})
    colours = dict(zip(halos, colormaps["viridis"].resampled(len(halos) + 1).colors, strict=False))
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


def main() -> None:
    options = parsed(sweep_parser())
    chosen = list(configurations(options))
    if options.picture:
        try:
            import matplotlib  # noqa: F401 - to know before hours are spent
        except ImportError:
            refuse("--picture needs matplotlib: pip install 'mpi4dl[plot]'")
    comm = start(options)
    runs = []
    if comm.rank == 0:
        print(f"{options.num_spatial_parts} ranks, {transport(comm)}")
        print(f"{'slices':>10s}{'halo':>5s}{'image':>12s}  {HEADER}")
    for one, layout in chosen:
        results = measure(exchange, one, layout, comm)
        runs.append(record(one, comm, results))
        if comm.rank == 0:
            size = "x".join(map(str, one.image_size))
            print(f"{one.slice_method:>10s}{one.halo_len:5d}{size:>12s}  {results[0]}", flush=True)
    if comm.rank == 0:
        if options.json:
            options.json.write_text(json.dumps(runs, indent=1))
        if options.picture:
            draw(runs, options.picture)


if __name__ == "__main__":
    main()
