"""The scripts of the original are there, start by themselves, and take its command lines."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpi4dl import cli
from mpi4dl.train import KINDS, MODELS, doctor
from mpi4dl.train.completion import SHELLS
from mpi4dl.train.doctor import EXACT, self_test
from support.ranks import UNDER_TORCHRUN
from train.conftest import decided, no_launcher  # noqa: F401

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="starts ranks itself")

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "layer_parallelism": ("lp", "layer"),
    "spatial_parallelism": ("sp", "spatial"),
    "gems_master_model": ("gems_master", "gems"),
    "gems_master_with_spatial_parallelism": ("gems_master_with_sp", "gems-spatial"),
}
SCRIPTS = {
    f"benchmarks/{folder}/benchmark_{model}_{suffix}.py": (kind, model)
    for folder, (suffix, kind) in FOLDERS.items()
    for model in MODELS
}
SCRIPTS["benchmarks/gems_master_model/benchmark_resnet_gems_master_with_sp.py"] = (
    *("gems-spatial", "resnet"),
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_its_kind_and_model(script, monkeypatch, capsys):
    kind, model = SCRIPTS[script]
    assert os.access(ROOT / script, os.X_OK), "one document starts a script without python"
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {Path(script).name} ")
    assert KINDS[kind].title.split(" (")[0].split(",")[0] in shown.replace("\n", " ")
    with pytest.raises(SystemExit):
        cli.main(["bench", kind, model, "--help"])
    ours = capsys.readouterr().out
    assert options_in(ours) == options_in(shown), "mpi4dl bench is the same"


def options_in(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, flags=re.M)


# What the original's documents have, the ranks that they are for, and the effective batch.
DOCUMENTED = [
    ("spatial", "amoebanet", "--image-size 512 --num-spatial-parts 4 --slice-method vertical "
     "--split-size 2 --spatial-size 1", 5, 32),
    ("spatial", "amoebanet", "--image-size 512 --num-spatial-parts 4 --slice-method vertical "
     "--split-size 3 --spatial-size 2", 9, 32),
    ("spatial", "resnet", "--halo-D2 --num-spatial-parts 4 --image-size 1024 --batch-size 2 "
     "--slice-method square", 5, 2),
    ("gems-spatial", "amoebanet", "--split-size 5 --batch-size 1 --image-size 1024 --times 2",
     8, 2),
    ("gems-spatial", "resnet", "--split-size 5 --image-size 2048 --batch-size 1 --times 4", 8, 4),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "model", "line", "ranks", "batch"), DOCUMENTED)
def test_a_documented_command_means_what_its_document_says(kind, model, line, ranks, batch):
    configuration = decided(kind, model, line, ranks)
    assert configuration.plan.world_size == ranks
    assert configuration.plan.replicas == 1
    assert configuration.samples == batch


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )


def test_a_script_starts_its_own_ranks():
    line = "--num-layers 3 --num-filters 8 --image-size 64 --batch-size 2 --steps 1"
    script = next(s for s, what in SCRIPTS.items() if what == ("gems-spatial", "amoebanet"))
    done = python(script, *line.split(), "--num-spatial-parts", "2", "--times", "2")
    assert done.returncode == 0, done.stderr
    assert "2 stages on 3 ranks (2 + 1 = 3)" in done.stdout
    assert "direction 1, mirrored" in done.stdout
    assert re.search(r"^Mean [\d.]+ Median [\d.]+$", done.stdout, flags=re.M)
    assert len(re.findall(r"^ +[012]  ", done.stdout, flags=re.M)) >= 3
    assert "Traceback" not in done.stderr


def test_under_a_launcher_one_rank_answers_a_mistake():
    script = "benchmarks/layer_parallelism/benchmark_resnet_lp.py"
    done = python("-m", "mpi4dl", "run", "--ranks", "3", script, "--image-size", "32")
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("this configuration needs 2 ranks") == 1
    assert "Traceback" not in done.stderr


def test_the_doctor_trains_on_two_ranks():
    findings, error = self_test()
    assert error == ""
    assert findings["gradient error"] <= EXACT
    assert all(value > 0 for value in findings.values())


FINE = {"gradient error": 1e-14, "exchange of 8 bytes": 1e-5}


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        ((FINE, ""), 0, "as in one process (relative error 1.0e-14, float64)"),
        (({**FINE, "gradient error": 1e-3}, ""), 1, "do not train"),
        (({**FINE, "exchange of 8 bytes": 0.01}, ""), 0, "small messages are slow"),
        (({}, "failed with exit code 1: nobody there"), 1, "nobody there"),
    ],
)
def test_the_doctor_says_what_is_here_and_what_to_do(outcome, code, said, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "self_test", lambda: outcome)
    assert cli.main(["doctor"]) == code
    shown = capsys.readouterr().out
    assert said in shown
    assert f"torch       {torch.__version__}" in shown
    if importlib.util.find_spec("mpi4py"):
        assert re.search(r"^  MPI         (?!mpi4py).*\d", shown, flags=re.M)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_benchmarks_and_flags(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("gems-spatial", "doctor", "amoebanet", "num-spatial-parts", "halo-lens", "sweep"):
        assert word in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench", "spacial"], "invalid choice: 'spacial'"),
        (["bench", "spatial", "vgg"], "invalid choice: 'vgg'"),
        (["bench"], "required: KIND"),
        (["doktor"], "invalid choice: 'doktor'"),
    ],
)
def test_a_command_that_there_is_not(words, expected, capsys):
    assert cli.main(words) == 2
    assert expected in capsys.readouterr().err
