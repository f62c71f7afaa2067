"""A run that was interrupted goes on in another layout, and ends as if nothing had happened."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mpi4dl.errors import DataError
from mpi4dl.train.runs import fit
from mpi4dl.train.runs.making import built
from support.ranks import UNDER_TORCHRUN, run_ranks

from .conftest import PLANS, trained

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="plans of other numbers of ranks")


@pytest.mark.usefixtures("double_precision")
def test_a_run_goes_on_in_the_middle_of_an_epoch_with_another_layout(configured):
    sections = {
        "training": {"epochs": 3, "ema": 0.8, "clip": 0.5},
        "data": {"samples": 12, "validation": 0},
        "scheduler": {"name": "CosineAnnealingLR", "arguments": {"T_max": 9}, "every": "step"},
        "checkpoints": {"every": 1, "every_steps": 4, "asynchronous": False},
        "evaluation": {"metrics": ["accuracy"]},
    }
    (whole,) = trained(configured(plan=PLANS["one process"], **sections))
    assert len(whole.losses) == 9
    first = configured(plan=PLANS["four tiles"], **sections)
    second = configured(plan=PLANS["pipeline"], **sections)
    first, second = (replace(made, folder=made.folder + "-2") for made in (first, second))
    # Stopped after step 5; the last checkpoint is that of step 5: a run saves when it ends.
    begun = trained(replace(first, training=replace(first.training, steps=5)))[0]
    assert begun.losses == pytest.approx(whole.losses[:5], rel=1e-12)
    rest = trained(second)[1]
    assert rest.losses == pytest.approx(whole.losses[5:], rel=1e-11)
    evaluated = [e["loss"] for e in (*begun.evaluations, *rest.evaluations)]
    assert evaluated == pytest.approx([e["loss"] for e in whole.evaluations], rel=1e-11)
    lines = Path(second.folder, "log.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    assert [line["step"] for line in steps if line["kind"] == "step"] == [*range(1, 10)]
    assert sum(line["kind"] == "end" for line in steps) == 2


def test_what_was_written_after_the_last_checkpoint_is_forgotten(configured):
    made = configured(training={"epochs": 2}, checkpoints={"every": 1, "keep": 9})
    trained(made)
    checkpoints = sorted(Path(made.folder, "checkpoints").iterdir())
    assert len(checkpoints) == 2
    log = Path(made.folder, "log.jsonl")
    with log.open("a", encoding="utf-8") as file:
        file.write('{"kind": "step", "step": 5, "loss": 7.0}\n{"kind": "st')  # and then a crash
    (again,) = trained(replace(made, training=replace(made.training, epochs=3)))
    assert len(again.losses) == 2
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert 7.0 not in [line.get("loss") for line in lines]


def test_the_best_evaluation_is_kept_beside_the_last_ones(configured):
    made = configured(
        training={"epochs": 3},
        optimizer={"lr": 0.0},
        checkpoints={"every": 1, "best": "accuracy"},
    )
    trained(made)
    (best,) = Path(made.folder, "best").iterdir()
    assert json.loads((best / "checkpoint.json").read_text())["values"]["progress"]["best"] > 0
    assert len(list(Path(made.folder, "checkpoints").iterdir())) == 3


def test_a_run_begins_with_weights_of_a_file(configured, tmp_path):
    made = configured()
    pretrained = built(replace(made, training=replace(made.training, seed=5)))
    save_file(pretrained.state_dict(), tmp_path / "weights.safetensors")
    began = replace(made, model=replace(made.model, weights=str(tmp_path / "weights.safetensors")))
    other = built(made)
    (expected,) = run_ranks(1, lambda comm: fit(made, comm, copy.deepcopy(pretrained)))
    two = replace(began, plan=replace(made.plan, split_size=2))
    ranks = run_ranks(2, lambda comm: fit(two, comm, copy.deepcopy(other)))
    assert ranks[0].losses == pytest.approx(expected.losses, rel=1e-11)


@pytest.mark.parametrize(
    ("differ", "message"),
    [((), r"weights of another model: 2 of another shape \(head"), (("head",), "")],
)
def test_weights_of_another_model_are_refused_unless_that_is_meant(
    configured, tmp_path, differ, message
):
    made = configured()
    file = tmp_path / "weights.safetensors"
    weights = built(made).state_dict()
    weights = {n: t[:1].clone() if n.startswith("head") else t for n, t in weights.items()}
    save_file(weights, file)
    began = replace(made, model=replace(made.model, weights=str(file), differ=differ))
    if not message:
        assert len(trained(began)[0].losses) == 4
        return
    with pytest.raises(DataError, match=message):
        trained(began)


def test_a_run_that_is_asked_to_stop_saves_and_wants_to_be_started_again(configured):
    made = configured(checkpoints={"every": 9}, plan=PLANS["pipeline"])
    model = built(made)

    def program(comm):
        from mpi4dl.train.runs.fitting import Fitting
        from mpi4dl.train.timed import Log

        fitting = Fitting(made, comm, Log(), copy.deepcopy(model))
        if comm.rank == 1:
            fitting.trainer.request_stop()
        result = fitting.run()
        fitting.close()
        return result

    for result in run_ranks(2, program):
        assert (len(result.losses), result.requeue, result.reason) == (1, True, "asked to stop")
    assert [len(r.losses) for r in trained(made)] == [3, 3]


def test_a_loss_that_is_no_number_ends_the_run_if_that_is_said(configured):
    made = configured(training={"nonfinite": "stop"}, plan=PLANS["pipeline"])
    model = built(made)
    with torch.no_grad():
        model[-1].bias.fill_(float("inf"))
    for result in run_ranks(2, lambda comm: fit(made, comm, copy.deepcopy(model))):
        assert not result.requeue
        assert "the loss is no number" in result.reason
