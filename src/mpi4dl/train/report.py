"""What a run has measured: as text, and the same as data."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from .breakdown import Breakdown
from .configuration import Configuration
from .loop import Measured
from .versions import installed

_COLUMNS = [field.name for field in fields(Breakdown)]


def rates(configuration: Configuration, measured: Measured) -> list[float]:
    """Images per second, of each step."""
    return [configuration.samples / seconds for seconds in measured.seconds]


def report_text(configuration: Configuration, measured: Measured) -> str:
    each = rates(configuration, measured)
    steps = f"{len(each)} steps" if len(each) > 1 else "1 step"
    return "\n".join(
        [
            "",
            f"images per second, {steps} of {configuration.samples} images:",
            f"Mean {statistics.mean(each):.4g} Median {statistics.median(each):.4g}",
            "",
            f"seconds of a step, where they went (mean of {steps}), and the peak memory",
            *_table(measured.ranks),
        ]
    )


def _table(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ["rank", *_COLUMNS, "peak MiB"]
    rows = [
        [str(rank), *(f"{row[name]:.3f}" for name in _COLUMNS), f"{row['peak_mib']:,.0f}"]
        for rank, row in enumerate(ranks)
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ([c.rjust(w) for c, w in zip(row, widths, strict=True)] for row in (header, *rows))
    return ["  " + "  ".join(line) for line in lines]


def report_data(configuration: Configuration, measured: Measured) -> dict[str, Any]:
    each = rates(configuration, measured)
    plan = configuration.plan
    return {
        "kind": configuration.kind.name,
        "model": configuration.model,
        "options": vars(configuration.options),
        "plan": asdict(plan),
        "world_size": plan.world_size,
        "samples_per_step": configuration.samples,
        "losses": measured.losses,
        "seconds": measured.seconds,
        "images_per_second": {
            "steps": each,
            "mean": statistics.mean(each),
            "median": statistics.median(each),
        },
        "ranks": measured.ranks,
        "versions": {
            "mpi4dl": installed("mpi4dl"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {"host": platform.node(), "threads": torch.get_num_threads()},
    }


def write_report(file: str, configuration: Configuration, measured: Measured) -> None:
    data = report_data(configuration, measured)
    Path(file).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
