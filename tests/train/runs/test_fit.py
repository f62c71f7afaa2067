"""Whole runs: what is trained does not depend on who has which part."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mpi4dl.train.runs.batches import batches
from mpi4dl.train.runs.fitting import Fitting
from mpi4dl.train.runs.making import built
from mpi4dl.train.timed import Log
from support.ranks import UNDER_TORCHRUN, run_ranks

from .conftest import PLANS, trained

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="plans of other numbers of ranks")


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("synthetic-segmentation", {}),
        ("synthetic", {"name": "resnet_v1", "arguments": {"depth": 8, "num_classes": 2}}),
    ],
)
@pytest.mark.usefixtures("double_precision")
def test_one_configuration_has_the_same_losses_in_every_layout(configured, kind, model):
    more = {"training": {"ema": 0.8, "clip": 0.5}, "scheduler": {"name": "ExponentialLR"}}
    more["scheduler"]["arguments"] = {"gamma": 0.7}
    (alone,) = trained(configured(data={"kind": kind}, model=model, **more))
    # Two micro-batches normalise each for itself, one process as well.
    results = {
        name: trained(configured(data={"kind": kind}, model=model, plan=plan, **more))
        for name, plan in PLANS.items()
    }
    expected = results["one process"][0]
    assert len(expected.losses) == 4
    assert alone.losses != pytest.approx(expected.losses, rel=1e-12), "parts are seen"
    for name, ranks in results.items():
        for result in ranks:
            assert result.losses == pytest.approx(expected.losses, rel=1e-12), name
            for ours, theirs in zip(result.evaluations, expected.evaluations, strict=True):
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12), name
                counted = {n: v for n, v in ours.items() if n != "loss"}
                assert counted == pytest.approx({n: theirs[n] for n in counted}, abs=1e-6), name


def roundings(model: nn.Module) -> float:
    """A relative bound on what rounding to 24 bits does to a loss of a forward: every layer adds
    up at most so many products, one after the other, and each addition may be off by half a bit."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    layers = sum(not list(m.children()) for m in model.modules())
    longest = max(m.weight[0].numel() for m in convolutions)
    return layers * longest * 2.0**-24


def test_in_float32_layouts_differ_by_rounding(configured):
    more = {"training": {"dtype": "float32"}, "optimizer": {"name": "SGD", "arguments": {}}}
    made = configured(plan=PLANS["one process"], **more)
    (expected,) = trained(made)
    bound = roundings(built(made))
    assert bound < 2e-3
    for name, plan in PLANS.items():
        losses = trained(configured(plan=plan, **more))[0].losses
        for step, (ours, theirs) in enumerate(zip(losses, expected.losses, strict=True), 1):
            # A small step of SGD passes on what the weights are off by, and adds as much.
            assert ours == pytest.approx(theirs, rel=step * bound), name


def by_hand(made) -> tuple[list[float], list[float]]:
    """The same in plain PyTorch: losses of steps, and of evaluations with averaged weights."""
    model, (training, evaluation) = built(made), batches(made)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=0.05, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    average.update_parameters(model)  # the first call copies
    losses, evaluated = [], []
    for epoch in range(3):
        for images, labels in training.epoch(epoch):
            x, y = (a[tuple(slice(0, n) for n in a.shape)] for a in (images, labels))
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            (loss / 2).backward()
            losses.append(loss.item())
            if len(losses) % 2 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                average.update_parameters(model)
        ours = copy.deepcopy(model).eval()
        for p, q in zip(ours.parameters(), average.module.parameters(), strict=True):
            p.data.copy_(q.data)
        (images, labels), *others = evaluation.epoch(0)
        assert not others
        x, y = (a[tuple(slice(0, n) for n in a.shape)] for a in (images, labels))
        evaluated.append(F.cross_entropy(ours(x), y, label_smoothing=0.1).item())
    return losses, evaluated


@pytest.mark.usefixtures("double_precision")
def test_a_run_does_what_a_loop_in_pytorch_does(configured):
    made = configured(
        training={"epochs": 3, "ema": 0.8, "clip": 0.3, "accumulate": 2},
        evaluation={"batch_size": 6},
        optimizer={"name": "AdamW", "arguments": {"eps": 0.05, "weight_decay": 0.1}},
        scheduler={
            "name": "CosineAnnealingLR",
            "arguments": {"T_max": 4},
            "every": "step",
        },
        loss={"arguments": {"label_smoothing": 0.1}},
        plan={"num_spatial_parts": 2},
    )
    losses, evaluated = by_hand(made)
    result = trained(made)[0]
    assert result.losses == pytest.approx(losses, rel=1e-11)
    assert [e["loss"] for e in result.evaluations] == pytest.approx(evaluated, rel=1e-11)


def test_a_run_stops_when_a_metric_stands_still(configured):
    made = configured(
        training={"epochs": 9, "stop_metric": "iou", "stop_after": 2},
        optimizer={"lr": 0.0},
        plan={"num_spatial_parts": 2},
    )
    result = trained(made)[0]
    assert len(result.evaluations) == 3, "the first is better than nothing, then two are not"
    assert result.reason.startswith("iou was no better than")
    assert result.reason.endswith("for 2 evaluations")


class Untrained(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)

    def forward(self, value):
        return self.layer(value)


def test_a_plateau_lowers_the_rate_on_every_rank(configured):
    made = configured(
        training={"epochs": 4, "steps": 7},
        evaluation={"every_steps": 5},
        optimizer={"name": "SGD", "lr": 1e-9, "arguments": {}},
        scheduler={
            "name": "ReduceLROnPlateau",
            "metric": "iou",
            "arguments": {"patience": 0, "mode": "max", "factor": 0.5, "eps": 0.0},
        },
        model={"name": "mpi4dl.models:unet", "arguments": {"base": 4, "depth": 1}},
        plan={"split_size": 4, "balance": [1, 1, 1, 1]},
    )
    model = built(made)
    model[1] = Untrained(model[1])

    def program(comm):
        fitting = Fitting(made, comm, Log(), copy.deepcopy(model))
        result = fitting.run()
        fitting.close()
        return fitting.trainer.optimizer is None, fitting.rate, result

    ranks = run_ranks(4, program)
    assert any(without for without, _, _ in ranks)
    assert {rate for _, rate, _ in ranks} == {2.5e-10}, "epochs 2 and 3 were no better"
    assert ranks[0][2].reason == "training.steps 7 are done"
    assert len(ranks[0][2].evaluations) == 4, "after 3 epochs, and after step 5"


def test_everything_is_written_down(configured, capsys):
    made = configured(plan=PLANS["tiles, then a shared batch"], logging={"tensorboard": True})
    losses = trained(made)[0].losses
    text = Path(made.folder, "log.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["loss"] for line in lines if line["kind"] == "step"] == losses
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == [2, 4]
    assert {"accuracy", "auc", "iou", "loss"} <= next(
        set(line) for line in lines if line["kind"] == "evaluation"
    )
    ranks = [line["ranks"] for line in lines if line["kind"] == "ranks"]
    assert [len(r) for r in ranks] == [4, 4]
    assert all(rank["peak_mib"] > 10 and rank["compute"] > 0 for rank in ranks[0])
    assert lines[-1]["reason"] == "all epochs are done"
    board = EventAccumulator(str(Path(made.folder, "tensorboard")))
    board.Reload()
    assert [event.value for event in board.Scalars("step/loss")] == pytest.approx(losses, rel=1e-6)
    assert [event.step for event in board.Scalars("evaluation/iou")] == [2, 4]
    (tag, *_) = board.Tags()["images"]
    assert (board.Images(tag)[0].height, board.Images(tag)[0].width) == (33, 99)
    shown = capsys.readouterr().out
    assert "evaluation after step 2: loss " in shown
    assert "ended after step 4: all epochs are done" in shown
