"""The pages about training: what they show runs, and the reference is complete."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml
from PIL import Image

from mpi4dl.train.runs import configuration
from mpi4dl.train.runs.reference import reference
from support.ranks import UNDER_TORCHRUN

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="commands start ranks of their own")

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, kind: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, flags=re.S)


def started(words: list[str]) -> None:
    """A program of its own, as a reader of the page starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial_from_two_folders_to_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, draw = blocks("tutorial.md", "python")
    assert "(256, 256)" in make
    started(["-c", make.replace("(256, 256)", "(128, 128)")])
    (text,) = blocks("tutorial.md", "yaml")
    assert "epochs: 8" in text
    Path("config.yaml").write_text(text.replace("epochs: 8", "epochs: 3"), encoding="utf-8")
    commands = [line for block in blocks("tutorial.md", "sh") for line in block.splitlines()]
    ran = [shlex.split(line) for line in commands if line.startswith("mpi4dl ")]
    assert [words[1] for words in ran] == ["train", "report", "predict"]
    for words in ran:
        started(["-m", *words])
    started(["-c", draw])
    log = Path("runs/nuclei/log.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in log.splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert len(losses) == 15
    assert losses[-1] < 0.85 * losses[0], "it learns"
    ranks = next(line["ranks"] for line in reversed(lines) if line["kind"] == "ranks")
    stored = sum(f.stat().st_size for d in ("slides", "masks") for f in Path(d).iterdir()) / 2**20
    # A picture this small is one block of its file, so each of four ranks reads all of it: before
    # the first batch, to see whether files are damaged, and in each of three epochs.
    assert all(0.9 * 3 * stored < rank["read_mib"] < 4 * stored for rank in ranks)
    mask = tifffile.imread("found/unseen.tif")
    assert mask.shape == (311, 402)
    picture = np.asarray(Image.open("prediction.png"))
    assert picture.shape == (311, 804, 3)
    changed = (picture[:, :402] != picture[:, 402:]).any(-1)
    np.testing.assert_array_equal(changed, mask == 1)
    page = Path("runs/nuclei/report.html").read_text(encoding="utf-8")
    assert "read from files by each rank" in page


def test_the_reference_is_complete():
    text = (DOCS / "train.md").read_text(encoding="utf-8")
    assert text.endswith("## Reference\n\n" + reference() + "\n"), (
        "docs/train.md ends with what python -m mpi4dl.train.runs.reference prints"
    )


def test_the_configuration_that_is_shown_can_be_run():
    text, own = blocks("train.md", "yaml")
    shown = configuration(yaml.safe_load(text))
    assert shown.plan.precision == "bf16"
    sections = {**yaml.safe_load(text), **yaml.safe_load(own)}
    assert configuration(sections).model.split_points == ("middle", "up1")


def test_the_same_from_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "MPI4DL_RANKS"):
        monkeypatch.delenv(name, raising=False)
    values = "model: {name: unet, arguments: {base: 2, depth: 1}}\ndata: {kind: "
    Path("config.yaml").write_text(values + "synthetic-segmentation, samples: 2}\n")
    (example,) = blocks("train.md", "python")
    exec(example, {})
    assert "{'loss': " in capsys.readouterr().out.splitlines()[-1]
