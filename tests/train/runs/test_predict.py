"""Predictions over tiles are those of one process, and no rank holds more than its part."""

from __future__ import annotations

import copy
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
import zarr
from PIL import Image
from safetensors.torch import save_file

from mpi4dl import Plan, cli
from mpi4dl.train.runs.command import write_configuration
from mpi4dl.train.runs.making import built
from mpi4dl.train.runs.predicting import Wanted, predict
from support.ranks import UNDER_TORCHRUN, run_ranks

from .conftest import trained

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="plans of other numbers of ranks")

PLANS = {
    "tiles": Plan(num_spatial_parts=4),
    "tiles, then one rank": Plan(split_size=2, num_spatial_parts=2, slice_method="horizontal"),
    "more tiles than chunks": Plan(num_spatial_parts=6, slice_method="3x2"),
    "two that share the batch": Plan(split_size=2, num_spatial_parts=2, local_dp=2),
}


@pytest.fixture
def picture(tmp_path) -> Path:
    """Of an odd size."""
    pixels = np.random.default_rng(0).integers(0, 256, (75, 101, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a slide.png")
    return tmp_path / "a slide.png"


def expected(model, picture) -> torch.Tensor:
    pixels = torch.from_numpy(np.asarray(Image.open(picture)).copy()).double()
    with torch.no_grad():
        return copy.deepcopy(model).eval()((pixels / 127.5 - 1).movedim(-1, 0)[None])


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["tiff", "zarr"])
def test_a_mask_of_any_size_is_written_by_all_ranks(configured, picture, tmp_path, plan, kind):
    made = configured()
    model = built(made)
    with torch.no_grad():  # neither class is found everywhere
        scores = expected(model, picture)
        model[-1].bias[1] += (scores[:, 0] - scores[:, 1]).median()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    found = expected(model, picture).argmax(1)[0].numpy()
    assert 0.1 < found.mean() < 0.9, "there is something to find"
    wanted = Wanted((picture,), tmp_path / "out", tmp_path / "weights.safetensors", kind, 32)
    made = replace(made, plan=PLANS[plan])
    other = built(replace(made, training=replace(made.training, seed=7)))
    ranks = run_ranks(
        made.plan.world_size, lambda comm: predict(made, wanted, comm, copy.deepcopy(other))
    )
    (file,) = ranks[0]
    if kind == "zarr":
        array = zarr.open_array(str(file), mode="r")
        assert array.chunks == (32, 32)
        mask = array[:]
    else:
        with tifffile.TiffFile(file) as opened:
            assert opened.pages[0].tile == (32, 32)
            mask = opened.asarray()
    assert mask.shape == (75, 101)
    np.testing.assert_array_equal(mask, found)


def test_classes_are_written_as_a_table(configured, picture, tmp_path):
    arguments = {"depth": 8, "num_classes": 3}
    made = configured(
        model={"name": "resnet_v1", "arguments": arguments},
        data={"kind": "synthetic", "count": 3},
        checkpoints={"every": 1, "best": "loss"},
        evaluation={"metrics": []},
        training={"ema": 0.5},
        plan={"split_size": 2, "num_spatial_parts": 2},
    )
    write_configuration(made)
    trained(made)
    wanted = Wanted((picture, picture), tmp_path / "out")
    for plan in (made.plan, Plan(num_spatial_parts=4)):
        ran = replace(made, plan=plan)
        model = built(made)

        def program(comm, ran=ran, model=model):
            return predict(ran, wanted, comm, copy.deepcopy(model))

        run_ranks(plan.world_size, program)
        with open(tmp_path / "out" / "scores.csv", encoding="utf-8", newline="") as file:
            header, first, second = csv.reader(file)
        assert header == ["image", "class 0", "class 1", "class 2"]
        assert first == second
        scores = [float(score) for score in first[1:]]
        assert sum(scores) == pytest.approx(1, abs=1e-5)
        if plan is made.plan:
            before = scores
    assert scores == pytest.approx(before, abs=1e-5)


def test_the_command(configured, picture, tmp_path, capsys):
    made = configured(checkpoints={"every": 1}, training={"dtype": "float32", "epochs": 1})
    write_configuration(made)
    trained(made)
    capsys.readouterr()
    out = tmp_path / "masks"
    assert cli.main(["predict", made.folder, str(picture), "--output", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'a slide.tif'}\n"
    assert tifffile.imread(out / "a slide.tif").shape == (75, 101)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no/such", "x.png"], "no/such is no folder of a run: it has no config.yaml"),
        (["RUN", "no/such.png"], "RUN has no checkpoint"),
        (["RUN", "no/such.png", "--weights", "w"], "--weights w is no file"),
        (["RUN", "x", "--format", "gif"], "--format is gif; it must be one of tiff, zarr"),
        (["RUN", "x", "--chunk", "7"], "--chunk is 7; it must be a multiple of 16"),
    ],
)
def test_mistakes(configured, capsys, words, message):
    made = configured()
    write_configuration(made)
    assert cli.main(["predict", *[made.folder if w == "RUN" else w for w in words]]) == 2
    assert message.replace("RUN", made.folder) in capsys.readouterr().err
