"""Small runs, whose ranks are threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mpi4dl.train.runs import Configuration, Result, configuration, fit
from mpi4dl.train.runs.making import built
from support.ranks import run_ranks

PLANS: dict[str, dict[str, Any]] = {
    "one process": {"parts": 2},
    "four tiles": {"parts": 2, "num_spatial_parts": 4},
    "pipeline": {"parts": 2, "split_size": 2, "schedule": "1f1b"},
    "replicas": {"replicas": 2},
    "tiles, then a shared batch": {
        "parts": 2,
        "split_size": 2,
        "num_spatial_parts": 2,
        "local_dp": 2,
        "slice_method": "vertical",
    },
}
"""All of them make two micro-batches of a batch."""


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """What the second says in a section takes the place of what the first does."""
    return {name: {**base.get(name, {}), **more.get(name, {})} for name in {**base, **more}}


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Configuration]:
    """A configuration of a small segmentation, with other values in some sections."""

    def make(**sections: Any) -> Configuration:
        base = {
            "model": {"name": "unet", "arguments": {"base": 4, "depth": 2}},
            "data": {
                "kind": "synthetic-segmentation",
                "view": {"size": [33, 33]},
                "samples": 8,
                "evaluated": 6,
            },
            "training": {"epochs": 2, "batch_size": 4, "dtype": "float64"},
            "evaluation": {"metrics": ["accuracy", "iou", "auc"]},
            "checkpoints": {"every": 0},
            "optimizer": {"name": "Adam", "lr": 0.01, "arguments": {"eps": 0.05}},
        }
        return configuration({"folder": str(tmp_path / "run"), **merged(base, sections)})

    return make


def trained(made: Configuration) -> list[Result]:
    """What every rank returned. Threads have one source of random numbers: one model for all."""
    model = built(made)
    return run_ranks(made.plan.world_size, lambda comm: fit(made, comm, copy.deepcopy(model)))
