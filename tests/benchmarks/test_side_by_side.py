"""The side-by-side benchmark: what it predicts is what ranks send, byte by byte."""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from mpi4dl.comm.communicator import use
from mpi4dl.models import amoebanet_d
from mpi4dl.train.timed import Call, Log, timed
from mpi4dl.train.traffic import Traffic, counted
from support.ranks import UNDER_TORCHRUN, run_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "side_by_side"))

import run
from volume import predicted

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="plans of other numbers of ranks")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3),
        nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)),
        nn.Sequential(
            nn.Conv2d(8, 6, 3, padding=2, dilation=2), nn.Conv2d(6, 6, (5, 1), padding=(2, 0))
        ),
        nn.Sequential(nn.BatchNorm2d(6), nn.AvgPool2d(3, stride=1, padding=1)),
        nn.Conv2d(6, 8, (1, 3), padding=(0, 1), bias=False),
        nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(8, 5),
    )


def sent(model: nn.Module, plan: mpi4dl.Plan, shape: tuple[int, ...]) -> list[Traffic]:
    images, labels = torch.randn(shape), torch.arange(shape[0]) % 5

    def program(comm):
        log = Log()
        with use(timed(comm, log)):
            sgd = partial(torch.optim.SGD, lr=0.01)
            trainer = mpi4dl.Trainer(
                copy.deepcopy(model), plan, loss=F.cross_entropy, optimizer=sgd, example=shape
            )
            trainer.step(images, labels)  # the first message of its kind is described before it
            log.calls.clear()
            trainer.step(images, labels)
        return counted(log.calls)

    return run_ranks(plan.world_size, program)


TILES = {"split_size": 2, "num_spatial_parts": 4, "spatial_size": 1, "balance": (5, 2)}


@pytest.mark.parametrize(
    "settings",
    [
        {"split_size": 3},
        TILES,
        {**TILES, "slice_method": "vertical", "parts": 2},
        {**TILES, "slice_method": "horizontal", "halo_d2": True},
        {**TILES, "halo_d2": True, "fused_layers": 3},
        {"split_size": 3, "num_spatial_parts": (4, 2), "spatial_size": 2, "balance": (2, 3, 2)},
        {"split_size": 3, "num_spatial_parts": (2, 4), "spatial_size": 2, "parts": 2},
        {"split_size": 1, "num_spatial_parts": 3, "spatial_size": 1, "slice_method": "vertical"},
    ],
    ids=str,
)
def test_what_geometry_predicts_is_what_every_rank_sends(settings):
    plan, model, shape = mpi4dl.Plan(**settings), network(), (3, 3, 64, 96)
    expected = predicted(plan, copy.deepcopy(model).to("meta"), shape)
    assert sent(model, plan, shape) == expected
    assert any(traffic.transfer for traffic in expected) == (plan.split_size > 1)
    assert any(traffic.halo for traffic in expected) == (plan.spatial_size > 0)


def test_so_it_is_for_fused_cells_of_amoebanet():
    plan, shape = mpi4dl.Plan(**{**TILES, "balance": (8, 1)}, halo_d2=True), (2, 3, 128, 64)
    with torch.device("meta"):
        expected = predicted(plan, amoebanet_d(3, 8, 5), shape)
    assert sent(amoebanet_d(3, 8, 5), plan, shape) == expected


def test_a_large_tile_is_predicted_in_no_time():
    """Where convolutions overlap with their halos; nothing of that size is computed here."""
    with torch.device("meta"):
        large = predicted(mpi4dl.Plan(**TILES), network(), (2, 3, 4096, 4096))
        twice = predicted(mpi4dl.Plan(**TILES), network(), (2, 3, 8192, 8192))
    for one, two in zip(large[:4], twice, strict=False):
        assert two.halo == pytest.approx(2 * one.halo, rel=1e-2), "as long as the tiles' sides"
        assert two.gradients == one.gradients


def test_what_is_not_predicted_is_refused():
    plan = mpi4dl.Plan(split_size=2, times=2, schedule="gems")
    with pytest.raises(ValueError, match="one direction"):
        predicted(plan, network().to("meta"), (2, 3, 64, 64))


def test_bytes_are_counted_by_what_they_are():
    calls = [
        Call("tiles", 0, 1, 8),
        Call("tiles", 1, 2, 4, together=True),
        Call("", 2, 3, 100),
        Call("", 3, 4, 8, together=True),  # to agree
        Call("gradients", 4, 5, 40, together=True),
        Call("mirror", 5, 6, 2),
    ]
    assert counted(calls) == Traffic(halo=8, statistics=4, transfer=100, gradients=42)
    assert counted(calls).total == 154


@pytest.mark.parametrize("mode", ["layer", "square, D2", "vertical"])
def test_a_mode_is_a_command_for_five_ranks(mode):
    case = run.Case("amoebanet", 64, 1, "--num-layers 3 --num-filters 8")
    plan = case.configuration(mode).plan
    assert plan.world_size == run.RANKS
    assert (plan.spatial_size == 0) == (mode == "layer")
    assert plan.halo_d2 == ("D2" in mode)
    assert case.command("square, D2") == (
        "spatial amoebanet --image-size 64 --batch-size 1 --slice-method square --halo-D2 "
        "--num-layers 3 --num-filters 8"
    )


def test_the_chart_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from chart import draw

    bytes_sent = {"halo": 10**6, "statistics": 10, "transfer": 10**5, "gradients": 10**6}
    records = [
        {
            "model": model,
            "image_size": size,
            "batch_size": batch,
            "mode": mode,
            "images_per_second": 1.5,
            "predicted_bytes": [bytes_sent],
        }
        for model, size in (("resnet", 64), ("amoebanet", 64), ("amoebanet", 128))
        for batch in (1, 2)
        for mode in run.MODES
    ]
    draw(records, str(tmp_path / "chart.png"))
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
