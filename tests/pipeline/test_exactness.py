"""The exactness matrix: whatever the plan, what is trained is what one process would train."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpi4dl import Plan
from mpi4dl.models import amoebanet_d, resnet_v2, unet
from support import matrix, networks
from support.training import Training, assert_trains_exactly, batches

small_unet = partial(unet, 3, networks.CLASSES, 2, 2)

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "plain": (networks.plain, (13, 11)),
    "branches": (networks.branches, (11, 14)),
    "skips": (networks.Skips, (13, 9)),
    "unet": (small_unet, (11, 9)),
}

ROWS = matrix.combinations_of_the_table()


def double(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make().double()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_the_matrix(row):
    plan = matrix.plan_of(row)
    assert plan is not None
    make, size = MODELS[row["model"]]
    samples = plan.micro_batches + int(row["more"])
    small = plan.world_size * plan.micro_batches <= 16
    training = Training(
        double(make),
        batches(samples, size, dense=row["model"] == "unet", steps=10 if small else 3),
        optimizer=row["optimizer"],
        split_points=networks.Skips.split_points if row["model"] == "skips" else None,
    )
    assert_trains_exactly(training, plan, f"{row['model']} with {plan!r}")


def test_every_pair_of_choices_is_in_the_matrix():
    """Save those that no plan has, or none that is small enough."""
    held = {pair for row in ROWS for pair in matrix.pairs_of(row)}
    draw = random.Random(1)
    for pair in matrix.all_pairs():
        if pair not in held:
            assert next(matrix.drawn_with(pair, draw, 100), None) is None, pair


# ── the original's models ────────────────────────────────────────────────────────────────────────

LARGER: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "resnet, tiles and a pipeline": (
        partial(resnet_v2, 11, networks.CLASSES),
        (9, 11),
        {"split_size": 3, "parts": 2, "num_spatial_parts": 4, "schedule": "1f1b", "local_dp": 2},
    ),
    "resnet, all of it on tiles, split backwards": (
        partial(resnet_v2, 11, networks.CLASSES),
        (9, 11),
        {"split_size": 2, "num_spatial_parts": (2, 2), "parts": 2, "schedule": "zb-h1"},
    ),
    "amoebanet, tiles of both directions": (
        partial(amoebanet_d, 3, 8, networks.CLASSES),
        (65, 49),
        {"split_size": 2, "num_spatial_parts": 2, "schedule": "gems", "times": 2},
    ),
    "amoebanet, computed again": (
        partial(amoebanet_d, 3, 8, networks.CLASSES),
        (65, 49),
        {"split_size": 4, "schedule": "chimera", "times": 2, "checkpoint_activations": 3},
    ),
    "unet of a volume": (
        partial(unet, 3, networks.CLASSES, 2, 1, 3),
        (6, 7, 5),
        {"split_size": 2, "num_spatial_parts": (4, 2), "parts": 2, "halo_d2": True},
    ),
}


@pytest.mark.parametrize("name", LARGER)
def test_larger_models(name):
    make, size, settings = LARGER[name]
    plan = Plan(**settings)
    samples = 2 * plan.micro_batches
    data = batches(samples, size, dense="unet" in name)
    training = Training(double(make), data, rate=0.01 if "amoebanet" in name else 1.0)
    assert_trains_exactly(training, plan, name)


# ── where the parts of a plan touch ──────────────────────────────────────────────────────────────

PLANS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "one rank, many micro-batches": {"parts": 5},
    "one rank has three stages": {
        "split_size": 3,
        "parts": 3,
        "schedule": "interleaved",
        "stages_per_actor": 3,
    },
    "two ranks have three stages each": {
        "split_size": 6,
        "parts": 4,
        "schedule": "interleaved",
        "stages_per_actor": 3,
    },
    "the turn of a V on tiles": {
        "split_size": 4,
        "num_spatial_parts": 2,
        "spatial_size": 2,
        "local_dp": 2,
        "parts": 3,
        "schedule": "zb-v",
    },
    "a stage without parameters": {"split_size": 4, "balance": (2, 1, 3, 4), "parts": 2},
    "a stage without parameters, split backwards": {
        "split_size": 4,
        "balance": (2, 1, 3, 4),
        "parts": 4,
        "schedule": "zb-h1",
    },
    "ranks with tiles of both directions": {
        "split_size": 2,
        "num_spatial_parts": 4,
        "parts": 2,
        "times": 2,
        "schedule": "gems",
    },
    "tiles in both directions at once": {
        "split_size": 2,
        "num_spatial_parts": 4,
        "parts": 2,
        "times": 3,
        "schedule": "chimera",
    },
    "mirrored ranks exchange gradients": {
        "split_size": 4,
        "parts": 2,
        "times": 2,
        "schedule": "chimera",
        "replicas": 2,
        "master_comm_opt": True,
    },
    "one layer in each of eight stages": {"split_size": 8, "parts": 3, "schedule": "1f1b"},
}


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("name", PLANS)
def test_plans(name, more):
    plan = Plan(**PLANS[name])
    training = Training(
        double(networks.plain),
        batches(plan.micro_batches + more, (12, 9)),
        optimizer="adam" if more else "sgd",
    )
    assert_trains_exactly(training, plan, name)


@pytest.mark.parametrize(
    "settings",
    [
        {"split_size": 2, "local_dp": 3},
        {"split_size": 2, "local_dp": 2, "num_spatial_parts": 4, "halo_d2": True},
        {"split_size": 4, "local_dp": 2, "schedule": "zb-v", "checkpoint_activations": 2},
    ],
)
@pytest.mark.parametrize("make", [networks.plain, networks.branches])
def test_ranks_without_samples(make, settings):
    training = Training(double(make), batches(1, (13, 11)))
    assert_trains_exactly(training, Plan(**settings), f"one sample, {settings}")


@pytest.mark.parametrize(
    "settings",
    [
        {"num_spatial_parts": 6, "slice_method": "3x2"},
        {"num_spatial_parts": 3, "slice_method": "vertical", "parts": 2, "replicas": 2},
        {"split_size": 2, "num_spatial_parts": (2, 4), "parts": 2, "schedule": "1f1b"},
        {"split_size": 2, "num_spatial_parts": (4, 2), "slice_method": ("horizontal", "vertical")},
        {"split_size": 2, "num_spatial_parts": (4, 4), "slice_method": ("square", "vertical")},
        {"split_size": 3, "num_spatial_parts": 2, "spatial_size": 3, "parts": 3, "halo_d2": True},
        {"split_size": 2, "local_dp": 3},
        {"split_size": 2, "num_spatial_parts": 4, "times": 2, "schedule": "gems"},
    ],
)
def test_a_label_for_every_pixel(settings):
    plan = Plan(**settings)
    training = Training(
        double(networks.segmenter), batches(plan.micro_batches + 1, (9, 13), dense=True)
    )
    assert_trains_exactly(training, plan, f"dense, {settings}")


# ── what models do ───────────────────────────────────────────────────────────────────────────────

HABITS = {
    "twice": networks.twice,
    "averaging": networks.averaging,
    "frozen": networks.frozen,
    "frozen in the middle": networks.frozen_in_the_middle,
    "hooked": networks.hooked,
}
WAYS: dict[str, dict[str, Any]] = {
    "split backwards": {"split_size": 2, "parts": 3, "schedule": "zb-h1"},
    "tiles": {"split_size": 2, "num_spatial_parts": 4, "parts": 2, "schedule": "1f1b"},
    "tiles, split backwards": {
        "split_size": 2,
        "num_spatial_parts": 2,
        "spatial_size": 2,
        "parts": 2,
        "schedule": "zb-v",
    },
    "both directions": {"split_size": 2, "parts": 2, "times": 2, "schedule": "chimera"},
    "computed again": {"split_size": 2, "parts": 2, "checkpoint_activations": True, "replicas": 2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("habit", HABITS)
def test_habits_of_models(habit, way):
    balance = (7, 3) if habit == "twice" else None
    plan = Plan(**WAYS[way], balance=balance)
    training = Training(double(HABITS[habit]), batches(plan.micro_batches + 1, (11, 8)))
    assert_trains_exactly(training, plan, f"{habit}, {way}")


# ── what a trainer is asked for ──────────────────────────────────────────────────────────────────


def summed(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels, reduction="sum") / 50


ASKED: dict[str, dict[str, Any]] = {
    "clipped": {"clip_grad_norm": 0.05},
    "not clipped": {"clip_grad_norm": 1e3},
    "accumulated": {"accumulate": 2},
    "accumulated and clipped": {"accumulate": 5, "clip_grad_norm": 0.1},
    "summed": {"reduction": "sum", "loss": summed},
    "summed and accumulated": {"reduction": "sum", "loss": summed, "accumulate": 2},
}


@pytest.mark.parametrize("schedule", ["zb-h1", "gems"])
@pytest.mark.parametrize("name", ASKED)
def test_options_of_the_trainer(name, schedule):
    plan = Plan(
        split_size=3,
        num_spatial_parts=2,
        local_dp=2 if schedule == "gems" else 1,
        parts=2,
        times=2 if schedule == "gems" else 1,
        schedule=schedule,
    )
    training = Training(
        double(networks.plain), batches(plan.micro_batches + 1, (11, 12)), **ASKED[name]
    )
    assert_trains_exactly(training, plan, f"{name}, {schedule}")


class OnFile:
    """Arrays in files, which are mapped to memory and sliced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def __call__(self, tensor: Tensor) -> np.memmap[Any, Any]:
        values = tensor.cpu().numpy()
        self.made += 1
        file = self.folder / f"{self.made}-{torch.randint(2**40, ()).item()}"
        mapped = np.memmap(file, values.dtype, "w+", shape=values.shape)
        mapped[:] = values
        mapped.flush()
        return np.memmap(file, values.dtype, "c", shape=values.shape)


@pytest.mark.parametrize("local_dp", [1, 2])
def test_images_and_labels_in_files(tmp_path, local_dp):
    plan = Plan(split_size=2, num_spatial_parts=2, local_dp=local_dp, parts=2)
    training = Training(double(networks.plain), batches(5, (11, 12)), feed=OnFile(tmp_path))
    assert_trains_exactly(training, plan, "files")


@pytest.mark.parametrize(
    "settings",
    [
        {"split_size": 2, "num_spatial_parts": 4, "parts": 2},
        {"split_size": 2, "local_dp": 2, "parts": 2, "replicas": 2},
    ],
)
def test_nested_images_and_labels(settings):
    def nested(images, labels):
        meta = images.mean((-1, -2))[:, :2]
        return {"image": images, "meta": meta}, [labels, {"target": meta[:, 0]}]

    def loss(output, labels):
        classes, others = labels
        return F.cross_entropy(output, classes) + F.mse_loss(output[:, 0], others["target"])

    data = [nested(*batch) for batch in batches(5, (9, 8))]
    training = Training(double(networks.nested), data, loss=loss)
    assert_trains_exactly(training, Plan(**settings), f"nested, {settings}")


def test_channels_last():
    model = double(networks.plain).to(memory_format=torch.channels_last)
    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches(5, (12, 9))]
    plan = Plan(split_size=3, num_spatial_parts=(4, 2), parts=2, schedule="1f1b")
    assert_trains_exactly(Training(model, data), plan, "channels last")
