"""Whole runs, with ranks that are threads: what is trained, measured and shown."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
import torch

from mpi4dl.train import bench
from mpi4dl.train.loop import trained
from mpi4dl.train.progress import Lines
from mpi4dl.train.report import report_data, report_text, write_report
from support.ranks import UNDER_TORCHRUN, run_ranks

from .conftest import decided

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="plans of other numbers of ranks")


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


SMALL = "--num-layers 3 --num-filters 8 --image-size 66 --batch-size 2 --steps 2 --lr 0.01"


def run(kind: str, line: str, ranks: int | None = None):
    configuration = decided(kind, "amoebanet", f"{SMALL} {line}", ranks)
    model = configuration.build()  # threads have one source of random numbers

    def program(comm):
        return trained(configuration, comm, lambda: copy.deepcopy(model))

    return configuration, run_ranks(configuration.plan.world_size, program)


def losses(kind: str, line: str, ranks: int | None = None) -> list[float]:
    (_, measured) = run(kind, line, ranks)
    assert len({tuple(m.losses) for m in measured}) == 1, "every rank has the loss of the batch"
    return measured[0].losses


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("layer", ""),
        ("spatial", ""),
        ("spatial", "--slice-method vertical --halo-D2"),
        ("spatial", "--num-spatial-parts 4,2 --spatial-size 2 --split-size 3 --schedule 1f1b"),
        ("gems", ""),
        ("gems-spatial", "--split-size 3 --num-spatial-parts 2"),
        ("layer", "--local-DP 2"),
    ],
)
def test_every_command_trains_what_one_process_trains(kind, line):
    alone = losses("layer", "--split-size 1")
    assert len(alone) == 2
    assert losses(kind, line) == pytest.approx(alone, rel=1e-11)


def test_two_directions_train_two_batches():
    configuration, measured = run("gems", "--times 2 --enable-master-comm-opt")
    assert configuration.samples == 4, "the effective batch: times × the batch"
    both = losses("layer", "--split-size 1 --batch-size 4 --parts 2")
    assert measured[0].losses == pytest.approx(both, rel=1e-11)


def test_twice_as_many_ranks_are_two_replicas():
    configuration, measured = run("layer", "", ranks=4)
    assert configuration.plan.replicas == 2
    assert configuration.samples == 4
    both = losses("layer", "--split-size 1 --batch-size 4 --parts 2")
    assert measured[0].losses == pytest.approx(both, rel=1e-11)


def test_a_report_says_all_and_the_same_as_data(tmp_path):
    configuration, measured = run("spatial", "--warmup 0")
    text = report_text(configuration, measured[0])
    data = report_data(configuration, measured[0])
    speed = data["images_per_second"]
    assert f"Mean {speed['mean']:.4g} Median {speed['median']:.4g}" in text.splitlines()
    assert len(data["ranks"]) == len(data["seconds"]) + 3 == 5
    for rank in data["ranks"]:
        parts = [rank[n] for n in "compute halo transfer gradients waiting other".split()]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(sum(data["seconds"]) / 2, rel=0.5)
        assert rank["peak_mib"] > 10
    assert all(rank["halo"] > 0 for rank in data["ranks"][:4])
    assert data["ranks"][4]["halo"] == 0
    write_report(str(tmp_path / "x.json"), configuration, measured[0])
    assert json.loads((tmp_path / "x.json").read_text())["losses"] == measured[0].losses


def test_a_single_rank_runs_in_this_process(tmp_path, capsys):
    file = tmp_path / "report.json"
    line = f"{SMALL} --split-size 1 --warmup 1 -v --json {file}"
    assert bench("layer", "amoebanet", line.split(), "bench") == 0
    shown = capsys.readouterr().out
    assert "1 stage on 1 rank" in shown
    lines = [line for line in shown.splitlines() if line.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == [f"step {n} of 3" for n in (1, 2, 3)]
    assert "loss" in lines[1]
    assert "images/s" in lines[1]
    assert lines[0].endswith("MiB (warm-up)")
    assert lines[1].endswith("MiB")
    assert "Mean " in shown
    assert json.loads(file.read_text())["world_size"] == 1


def test_without_a_terminal_some_steps_have_a_line(capsys):
    lines = Lines(total=100)
    for number in range(1, 101):
        lines.step(number, "facts")
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["step   1 of 100  facts", "step 100 of 100  facts"]


@pytest.mark.parametrize(
    ("kind", "model", "line", "note"),
    [
        ("layer", "resnet", "--num-spatial-parts 2", "--num-spatial-parts and --spatial-size"),
        ("layer", "resnet", "--halo-D2", "no stage is cut into tiles"),
        ("spatial", "resnet", "--num-layers 24", "this is ResNet-110 v2"),
        ("spatial", "resnet", "--num-workers 2", "--num-workers has no effect"),
        ("spatial", "resnet", "--halo-D2 --slice-method vertical", ""),
    ],
)
def test_what_has_no_effect_is_said(kind, model, line, note):
    notes = list(decided(kind, model, line).notes())
    assert len(notes) == bool(note)
    assert note in "".join(notes)
