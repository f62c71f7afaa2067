"""Checkpoints: any layout goes on from any other, and what is there is whole."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mpi4dl import Plan, Trainer
from mpi4dl.cli import main
from mpi4dl.comm.threads import run_threads
from mpi4dl.errors import CheckpointError, PlanError
from mpi4dl.pipeline.whole_state import NotLoaded
from mpi4dl.train.checkpoints import Checkpoints, export_weights, read_weights
from mpi4dl.train.checkpoints.index import Index
from mpi4dl.train.checkpoints.storage import (
    INDEX,
    JsonLoadPlanner,
    SafetensorsReader,
    SafetensorsWriter,
    read_index,
    write_alone,
)
from support.ranks import UNDER_TORCHRUN, every_rank_raises
from support.training import batches

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="ranks that are threads, and one process")

BOUND = 1e-12


def network(width: int = 6, classes: int = 10) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, width, 3, padding=1, stride=2),
        nn.BatchNorm2d(width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    ).double()


NETWORK = network()
BATCHES = batches(4, (12, 14), steps=10)
PLANS = {
    "5 ranks, tiles and a pipeline": Plan(split_size=2, num_spatial_parts=(4,), parts=2),
    "2 ranks, a pipeline": Plan(split_size=2, parts=2),
    "3 ranks, tiles": Plan(num_spatial_parts=3, slice_method="vertical", parts=2),
    "4 ranks, both directions": Plan(split_size=4, parts=1, schedule="gems", times=2),
    "1 rank": Plan(parts=2),
}


def in_groups(parameters: Any) -> torch.optim.Optimizer:
    """As many users have it: no weight decay for what has one dimension."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1, "lr": 0.01},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0, "lr": 0.02},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], amsgrad=True)


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adamw in groups": in_groups,
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, centered=True, eps=1e-2),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}


def trainer_of(plan: Plan, model: nn.Module = NETWORK, **options: Any) -> Trainer:
    options = {"optimizer": OPTIMIZERS["sgd"], **options}
    return Trainer(copy.deepcopy(model), plan, F.cross_entropy, **options)


def steps(trainer: Trainer, start: int, stop: int) -> list[float]:
    return [float(trainer.step(*BATCHES[i])) for i in range(start, stop)]


def saved(folder: Path, plan: Plan = PLANS["1 rank"], stop: int = 2, **options: Any) -> None:
    """A checkpoint after so many steps."""

    def program(comm: Any) -> None:
        trainer = trainer_of(plan, **options)
        steps(trainer, 0, stop)
        Checkpoints(folder, asynchronous=False).save(trainer, {"next": stop})

    run_threads(plan.world_size, program)


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_go_on_exactly_from_layout_to_layout(optimizer, tmp_path):
    """Also in the middle of an accumulation: the third and the seventh step are between updates."""
    options = {"optimizer": OPTIMIZERS[optimizer], "accumulate": 2, "clip_grad_norm": 1.0}
    expected = steps(trainer_of(Plan(parts=2), **options), 0, 10)
    found = []
    for plan, start, stop in zip(PLANS.values(), (0, 3, 4, 7, 9), (3, 4, 7, 9, 10), strict=True):

        def program(comm, plan=plan, start=start, stop=stop):
            trainer, checkpoints = trainer_of(plan, **options), Checkpoints(tmp_path)
            progress = checkpoints.load(trainer)
            assert progress == ({"next": start} if start else None)
            losses = steps(trainer, start, stop)
            checkpoints.save(trainer, {"next": stop})
            checkpoints.wait()
            return losses

        found += run_threads(plan.world_size, program)[0]
    worst = max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))
    assert worst <= BOUND, (worst, found, expected)


def test_every_tensor_is_written_once_and_by_several_ranks(tmp_path):
    saved(tmp_path, PLANS["5 ranks, tiles and a pipeline"])
    (checkpoint,) = tmp_path.iterdir()
    names = []
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            assert opened.keys(), f"{file.name} is empty: work could be shared out better"
            names += opened.keys()
    index = read_index(checkpoint)
    assert sorted(names) == sorted(index.tensors)
    assert {f"model.{name}" for name in NETWORK.state_dict()} < set(names)
    assert {f"optim.state.{n}.momentum_buffer" for n, _ in NETWORK.named_parameters()} < set(names)
    assert len(list(checkpoint.glob("*.safetensors"))) == 5


def test_training_goes_on_while_it_is_written(tmp_path):
    trainer, checkpoints = trainer_of(Plan(parts=2)), Checkpoints(tmp_path)
    steps(trainer, 0, 2)
    before = copy.deepcopy(trainer.state_dict())
    checkpoints.save(trainer, {"next": 2})
    expected = steps(trainer, 2, 6)
    checkpoints.wait()
    again = trainer_of(Plan(parts=2))
    assert checkpoints.load(again) == {"next": 2}
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
    assert steps(again, 2, 6) == expected


def test_a_group_has_the_options_of_when_it_was_saved(tmp_path):
    trainer = trainer_of(Plan(parts=2), optimizer=in_groups)
    scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, 0.5)
    steps(trainer, 0, 1)
    scheduler.step()
    Checkpoints(tmp_path, asynchronous=False).save(trainer)
    again = trainer_of(Plan(parts=2), optimizer=in_groups)
    Checkpoints(tmp_path).load(again)
    assert [group["lr"] for group in again.optimizer.param_groups] == [0.005, 0.01]
    assert [group["initial_lr"] for group in again.optimizer.param_groups] == [0.01, 0.02]
    assert again.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_companions_loss_scale_and_random_numbers_are_kept(tmp_path):
    plan = Plan(split_size=2, parts=2, precision="fp16")
    model = network().float()

    def program(comm, load):
        trainer = trainer_of(plan, model)
        average = {n: torch.full_like(p, 7.0) for n, p in trainer.named_parameters().items()}
        if load:
            for value in average.values():
                value.zero_()
        trainer.add_companion("ema", average)
        checkpoints = Checkpoints(tmp_path)
        if load:
            checkpoints.load(trainer)
            assert all((value == 7).all() for value in average.values())
        else:
            for images, labels in BATCHES[:2]:
                trainer.step(images.float(), labels)
            checkpoints.save(trainer)
            checkpoints.wait()
        return trainer.full_state().get("training")

    wrote, read = (run_threads(2, partial(program, load=load))[0] for load in (False, True))
    assert wrote == read
    assert wrote["scale"]["good"] == 2
    state = torch.get_rng_state()
    torch.rand(3)
    run_threads(2, partial(program, load=True))
    saved_state = load_file(next(tmp_path.glob("*/part-00000.safetensors")))["rng.torch"]
    assert torch.equal(torch.get_rng_state(), saved_state)
    torch.set_rng_state(state)


# ── a folder of them ─────────────────────────────────────────────────────────────────────────────


def test_the_last_ones_stay_and_any_of_them_can_be_loaded(tmp_path):
    trainer, checkpoints = trainer_of(Plan()), Checkpoints(tmp_path, keep=2)
    assert checkpoints.load(trainer) is None
    for step in range(4):
        steps(trainer, step, step + 1)
        checkpoints.save(trainer, {"next": step + 1})
    checkpoints.wait()
    assert checkpoints.steps() == [3, 4]
    assert checkpoints.load(trainer, 3) == {"next": 3}
    assert trainer.steps == 3
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 1 in .*: there are 3, 4"):
        checkpoints.load(trainer, 1)
    checkpoints.save(trainer, {"next": 3, "again": True})  # another future begins here
    checkpoints.wait()
    assert checkpoints.load(trainer) == {"next": 3, "again": True}
    assert checkpoints.steps() == [4, 3]


def test_what_a_run_left_unfinished_is_no_checkpoint_and_goes(tmp_path):
    saved(tmp_path)
    unfinished = tmp_path / ".step-00000009.abcd"
    unfinished.mkdir()
    (unfinished / "part-00000.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000010").mkdir()
    trainer, checkpoints = trainer_of(Plan(parts=2)), Checkpoints(tmp_path)
    assert checkpoints.steps() == [2]
    assert checkpoints.load(trainer) == {"next": 2}
    steps(trainer, 2, 3)
    checkpoints.save(trainer)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3]
    assert not unfinished.exists()


@pytest.mark.parametrize("damage", ["truncated", "missing", "other format"])
def test_a_damaged_checkpoint_is_named_and_changes_nothing(damage, tmp_path):
    saved(tmp_path, PLANS["2 ranks, a pipeline"])
    (checkpoint,) = tmp_path.iterdir()
    part, index = checkpoint / "part-00001.safetensors", checkpoint / INDEX
    if damage == "truncated":
        part.write_bytes(part.read_bytes()[:-100])
    elif damage == "missing":
        part.unlink()
    else:
        index.write_text(index.read_text().replace("mpi4dl checkpoint 1", "mpi4dl checkpoint 9"))

    def program(comm):
        trainer = trainer_of(PLANS["2 ranks, a pipeline"])
        before = copy.deepcopy(trainer.state_dict())
        try:
            Checkpoints(tmp_path).load(trainer)
        finally:
            now = trainer.state_dict()
            assert trainer.steps == 0
            assert all(torch.equal(now[name], value) for name, value in before.items())

    named = "this version reads" if damage == "other format" else "part-00001.*cannot be read"
    every_rank_raises(2, program, CheckpointError, named)


# ── another training's ───────────────────────────────────────────────────────────────────────────

OTHERS = {
    "shapes": (
        {"model": network(width=7)},
        r"another model: 3.weight is \(6, 4, 3, 3\) in it and \(7, 4, 3, 3\) in the model; .* more",
    ),
    "names": (
        {"model": nn.Sequential(*list(network())[:-1], nn.Identity(), network()[-1])},
        r"it has no 8.weight; it has no 8.bias; it has 7.weight, the model has not; and 1 more",
    ),
    "optimizer": ({"optimizer": partial(torch.optim.Adam)}, "saved with SGD, and this is Adam"),
    "groups": (
        {"optimizer": partial(torch.optim.AdamW), "saved": {"optimizer": in_groups}},
        "parameters that are one group here had different options, such as",
    ),
    "accumulation": (
        {"accumulate": 3, "saved": {"accumulate": 4, "stop": 1}},
        "1 steps into an accumulation of 4, and this trainer accumulates 3",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_training_is_refused_by_all_before_anything(what, tmp_path):
    options, match = OTHERS[what]
    options = dict(options)
    saved(tmp_path, **options.pop("saved", {}))

    def program(comm):
        trainer = trainer_of(PLANS["2 ranks, a pipeline"], **options)
        before = copy.deepcopy(trainer.state_dict())
        try:
            Checkpoints(tmp_path).load(trainer)
        finally:
            now = trainer.state_dict()
            assert all(torch.equal(now[name], value) for name, value in before.items())

    every_rank_raises(2, program, CheckpointError, match)


def test_a_parameter_that_is_frozen_now_is_named(tmp_path):
    saved(tmp_path)
    frozen = network()
    frozen[0].weight.requires_grad = False

    def program(comm):
        Checkpoints(tmp_path).load(trainer_of(PLANS["2 ranks, a pipeline"], frozen))

    every_rank_raises(2, program, CheckpointError, "0.weight is trained in it and not here")


# ── what cannot be saved ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_the_last_good_one_and_training_may_go_on(small_disk):
    plan, wide = PLANS["2 ranks, a pipeline"], network(width=64)

    def program(comm, on_error):
        trainer = trainer_of(plan, wide)
        checkpoints = Checkpoints(small_disk, on_error=on_error)
        steps(trainer, 0, 1)
        checkpoints.save(trainer, {"next": 1})
        for step in range(1, 6):
            steps(trainer, step, step + 1)
            checkpoints.save(trainer, {"next": step + 1})
        checkpoints.wait()

    match = r"not saved; the last good one is that of step \d\. rank \d could not write .* space"
    every_rank_raises(2, partial(program, on_error="raise"), CheckpointError, match)
    assert not list(small_disk.glob(".step-*")), "what was half written takes up room"
    trainer = trainer_of(Plan(parts=2), wide)
    last = Checkpoints(small_disk).steps()[-1]
    assert Checkpoints(small_disk).load(trainer) == {"next": last}
    with pytest.warns(RuntimeWarning, match=match):
        run_threads(2, partial(program, on_error="warn"))
    assert Checkpoints(small_disk).load(trainer)


class Odd(torch.optim.SGD):
    """Keeps something that is neither a tensor nor a number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [parameter]
        return super().step(closure)


@pytest.mark.parametrize(
    ("options", "progress", "match"),
    [
        ({}, {"when": {1, 2}}, "^progress must be what JSON can express"),
        ({"optimizer": partial(Odd, lr=0.1)}, {}, "has 'history', a list: checkpoints take"),
    ],
    ids=["progress", "state"],
)
def test_what_no_checkpoint_can_hold_is_refused_by_all(options, progress, match, tmp_path):
    def program(comm):
        trainer = trainer_of(PLANS["2 ranks, a pipeline"], **options)
        steps(trainer, 0, 1)
        Checkpoints(tmp_path).save(trainer, progress)

    every_rank_raises(2, program, CheckpointError, match, alike=False)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")

    def program(comm):
        Checkpoints(tmp_path / "file").save(trainer_of(PLANS["2 ranks, a pipeline"]))

    every_rank_raises(2, program, CheckpointError, "there is none yet. rank 0: nothing can be")


@pytest.mark.parametrize(("options", "match"), [({"keep": 0}, "1"), ({"on_error": "x"}, "warn")])
def test_options_that_mean_nothing(options, match, tmp_path):
    with pytest.raises(CheckpointError, match=match):
        Checkpoints(tmp_path, **options)


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_a_pickle(tmp_path, monkeypatch):
    saved(tmp_path)
    assert {file.suffix for file in tmp_path.glob("*/*")} == {".json", ".safetensors"}

    def refused(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a pickle is read")

    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(module, name, refused)
    monkeypatch.setattr(pickle, "Unpickler", refused)
    assert Checkpoints(tmp_path).load(trainer_of(Plan(parts=2))) == {"next": 2}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_pytorchs_own_tools_read_them(tmp_path):
    saved(tmp_path, PLANS["5 ranks, tiles and a pipeline"])
    (checkpoint,) = tmp_path.iterdir()
    expected = load_file(tmp_path / export(checkpoint, tmp_path))
    ours, theirs = (
        {f"model.{name}": torch.zeros_like(t) for name, t in NETWORK.state_dict().items()}
        for _ in range(2)
    )
    dcp.load(ours, storage_reader=SafetensorsReader(checkpoint), planner=JsonLoadPlanner())
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(checkpoint)))
    for name, value in expected.items():
        assert torch.equal(ours[f"model.{name}"], value)
        assert torch.equal(theirs[f"model.{name}"], value)


def export(checkpoint: Path, folder: Path) -> str:
    export_weights(checkpoint, folder / "weights.safetensors")
    return "weights.safetensors"


def test_boxes_of_a_tensor_can_be_read(tmp_path):
    """As a state of DTensors asks for them: the planner's business, and the reader's."""
    whole = torch.arange(40.0).view(8, 5)
    write_alone({"w": whole, "n": {"a": 1}}, SafetensorsWriter(tmp_path))
    state: dict[str, Any] = {"w": torch.zeros(8, 5), "n": None}
    reader = SafetensorsReader(tmp_path)
    metadata = reader.read_metadata()
    planner = JsonLoadPlanner()
    planner.set_up_planner(state, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = planner.create_local_plan()
    (item,) = [one for one in plan.items if one.dest_index.fqn == "w"]
    box = torch.Size([3, 5])
    at = torch.Size([2, 0])
    plan.items[plan.items.index(item)] = type(item)(
        item.type, item.dest_index, at, item.storage_index, at, box
    )
    planner.resolve_tensor = lambda item: state["w"][2:5]  # type: ignore[method-assign]
    reader.read_data(plan, planner).wait()
    assert torch.equal(state["w"][2:5], whole[2:5])
    assert state["n"] == {"a": 1}
    assert not state["w"][:2].any()
    assert Index.from_json((tmp_path / INDEX).read_text()).tensors["w"].shape == (8, 5)


# ── weights ──────────────────────────────────────────────────────────────────────────────────────


def test_exported_weights_are_the_models_own(tmp_path, capsys):
    saved(tmp_path / "run", PLANS["5 ranks, tiles and a pipeline"])
    file = tmp_path / "weights.safetensors"
    assert main(["export", str(tmp_path / "run"), str(file)]) == 0
    assert f"{len(NETWORK.state_dict())} tensors" in capsys.readouterr().out
    plain = network()
    plain.load_state_dict(load_file(file))
    trainer = trainer_of(Plan(parts=2))
    Checkpoints(tmp_path / "run").load(trainer)
    for name, value in trainer.state_dict().items():
        assert torch.equal(plain.state_dict()[name], value)
    assert main(["export", str(tmp_path / "nothing"), str(file)]) == 2
    assert "has no checkpoint" in capsys.readouterr().err


def test_weights_of_another_number_of_classes_are_loaded_but_for_those(tmp_path):
    file = tmp_path / "pretrained.safetensors"
    given = {**network(classes=4).state_dict(), "extra": torch.zeros(1)}
    given["0.weight"] = torch.full_like(given["0.weight"], 0.5)
    del given["1.bias"]
    save_file(given, file)

    def program(comm):
        trainer = trainer_of(PLANS["5 ranks, tiles and a pipeline"])
        before = trainer.state_dict()
        with pytest.raises(PlanError, match=r"1 names are missing \(1.bias\).*2 have other shapes"):
            trainer.load_state_dict(read_weights(file))
        left = trainer.load_state_dict(read_weights(file), strict=False)
        after = trainer.state_dict()
        assert (after["0.weight"] == 0.5).all()
        assert torch.equal(after["7.weight"], before["7.weight"])
        return left

    lists = run_threads(5, program)
    assert len(set(lists)) == 1
    assert lists[0] == NotLoaded(
        ("1.bias",),
        ("extra",),
        (
            "7.weight ((4, 6) in the state, (10, 6) in the model)",
            "7.bias ((4,) in the state, (10,) in the model)",
        ),
    )
    assert str(lists[0]).splitlines()[0] == "missing, left as they were: 1.bias"
    assert not trainer_of(Plan()).load_state_dict(NETWORK.state_dict())


def test_files_that_may_run_code_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="may run code"):
        read_weights(tmp_path / "resnet50.pth")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weights(tmp_path / "missing.safetensors")


def test_the_index_is_plain_json(tmp_path):
    saved(tmp_path)
    (checkpoint,) = tmp_path.iterdir()
    read = json.loads((checkpoint / INDEX).read_text())
    assert read["values"]["training"]["steps"] == 2
    assert read["values"]["optim.param_groups.0.weight"]["momentum"] == 0.9
