"""After a run: what the planner would have said, beside what was measured.

The environment variable MPI4DL_MACHINE names a file that `mpi4dl calibrate` has written; without it
nobody knows this machine, and nothing is said.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence

import torch

from ..errors import Mpi4dlError
from ..planner.calibrate import load_machine
from ..planner.prediction import Prediction, Setting, predicted
from ..planner.profile import Profile
from .configuration import Configuration
from .loop import Measured

VARIABLE = "MPI4DL_MACHINE"


def foreseen(configuration: Configuration, measured: Measured) -> str | None:
    """A line or two; None if there is nothing to compare."""
    file = os.environ.get(VARIABLE)
    if not file:
        return None
    try:
        found = _predicted(configuration, file)
    except (Mpi4dlError, OSError, ValueError, KeyError) as error:
        return f"\nnot predicted: {error}"
    took = statistics.median(measured.seconds)
    step = f"{found.seconds:.3g} s a step, measured {took:.3g} ({found.seconds / took - 1:+.0%})"
    return "\n".join(["", f"predicted: {step}", _memory(found, measured.ranks)])


def _predicted(configuration: Configuration, file: str) -> Prediction:
    size = configuration.options.image_size
    device, cluster = load_machine(file)
    with torch.device("meta"):
        model = configuration.build()
    # Plain SGD keeps nothing.
    setting = Setting(configuration.samples, device, cluster, states=0.0)
    return predicted(Profile(model, (3, size, size)), configuration.plan, setting)


def _memory(found: Prediction, ranks: Sequence[Mapping[str, float]]) -> str:
    """Of the rank that was predicted worst, above its imports."""
    pairs = [
        (found.peak_of(rank) / 2**20, row["peak_mib"] - row["imports_mib"], rank)
        for rank, row in enumerate(ranks)
    ]
    expected, was, rank = max(pairs, key=lambda pair: abs(pair[0] / max(pair[1], 1.0) - 1))
    return (
        f"predicted: {expected:,.0f} MiB on rank {rank} above its imports, measured {was:,.0f} "
        f"({expected / max(was, 1.0) - 1:+.0%}; what the allocator keeps is measured, too)"
    )
