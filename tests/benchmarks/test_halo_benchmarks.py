"""The scripts of the halo benchmarks, and `mpi4dl bench halo`, with ranks that are processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpi4dl import cli
from mpi4dl.train import HALO
from support.ranks import UNDER_TORCHRUN
from train.conftest import no_launcher  # noqa: F401

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="starts its ranks itself")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "communication" / "halo"

EXCHANGE = "benchmark_sp_halo_exchange.py"
COMPUTE = "benchmark_sp_halo_exchange_with_compute.py"
VALIDATED = "benchmark_sp_halo_exchange_with_compute_val.py"
LAYER = "benchmark_sp_halo_exchange_conv.py"


SMALL = "--image-size 13x18 --in-channels 2 --out-channels 3 --warmup 1 --iterations 3".split()


def run(script, *arguments, launcher=()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *launcher, str(FOLDER / script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def check(record, names, ranks):
    assert record["ranks"] == ranks
    assert [result["name"] for result in record["results"]] == names
    for result in record["results"]:
        assert len(result["times_ms"]) == 3
        assert 0 < result["min_ms"] <= result["median_ms"] <= result["p95_ms"]
        assert result["min_ms"] <= result["mean_ms"]
        assert len(result["messages"]) == len(result["received_bytes"]) == ranks


SCRIPTS = {
    EXCHANGE: ["forward", "backward", "together", "forward, tile included"],
    COMPUTE: ["exchange alone", "convolution alone", "both, overlapped"],
    VALIDATED: ["exchange alone", "convolution alone", "both, overlapped"],
    LAYER: ["forward", "backward", "gradients summed", "together"],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_its_own_ranks(script, tmp_path):
    more = ["--backward", "--with-tile"] if script == EXCHANGE else []
    file = tmp_path / "out.json"
    done = run(script, *SMALL, "--num-spatial-parts", "3", *more, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    check(record, SCRIPTS[script], 3)
    assert record["benchmark"] == Path(script).stem
    shown = done.stdout.splitlines()
    assert all(any(line.startswith(name) for line in shown) for name in SCRIPTS[script])
    if script == VALIDATED:
        assert "validation passed: 0 of" in done.stdout
        assert record["validation"]["wrong_pixels"] == 0
        assert record["validation"]["pixels"] == 2 * 4 * 13  # both sides of two cuts, two channels
    else:
        assert record["validation"] is None
    if script == EXCHANGE:
        forward = record["results"][0]
        assert forward["messages"] == [1, 2, 1]
        assert forward["received_bytes"] == [4 * 2 * 13 * n for n in (1, 2, 1)]


def test_torchrun_starts_the_ranks(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    file = tmp_path / "out.json"
    arguments = [*SMALL, "--num-spatial-parts", "2", "--json", str(file), "--slice-method", "2x1"]
    done = run(EXCHANGE, *arguments, "--fp16-allreduce", launcher=launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    check(record, ["forward"], 2)
    assert record["results"][0]["received_bytes"] == [2 * 2 * 18, 2 * 2 * 18]


def test_torchrun_with_another_number_of_ranks_is_told_once():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(EXCHANGE, launcher=launcher)
    assert done.returncode != 0
    said = "--num-spatial-parts is 4, and torchrun started 2 ranks"
    assert done.stderr.count(said) == 1


def test_a_refusal_starts_nothing():
    done = run(LAYER, "--slice-method", "2x3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_sweep_draws_its_curves(tmp_path):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    done = run(
        "sweep.py",
        *"--num-spatial-parts 2 --warmup 1 --iterations 2 --image-sizes 8 16x12".split(),
        *"--halo-lens 0 2 --slice-methods square 2x1".split(),
        *("--json", str(file), "--picture", str(picture)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(file.read_text())
    found = {(r["slice_method"], r["halo_len"], tuple(r["image_size"])) for r in runs}
    assert len(found) == len(runs) == 8
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_script_is_a_benchmark_of_the_command():
    assert {f"{benchmark.script}.py" for benchmark in HALO.values()} == {
        path.name for path in FOLDER.glob("*.py")
    }
    for name, benchmark in HALO.items():
        script = FOLDER / f"{benchmark.script}.py"
        assert f'halo("{name}")' in script.read_text()
        assert os.access(script, os.X_OK)


def test_one_rank_runs_in_this_process(tmp_path, capsys):
    file = tmp_path / "out.json"
    words = ["bench", "halo", "validate", *SMALL, "--num-spatial-parts", "1", "--json", str(file)]
    assert cli.main(words) == 0
    assert "validation passed: 0 of 0 received pixels" in capsys.readouterr().out
    check(json.loads(file.read_text()), SCRIPTS[VALIDATED], 1)


@pytest.mark.parametrize("name", HALO)
def test_help_has_an_example_and_every_default(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "halo", name, "--help"])
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert f"example:\n  mpi4dl bench halo {name} --" in shown
    assert "(default: 4)" in shown


def test_a_benchmark_that_there_is_not(capsys):
    assert cli.main(["bench", "halo", "exchang"]) == 2
    assert "invalid choice: 'exchang' (choose from" in capsys.readouterr().err
