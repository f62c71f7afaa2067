"""The operator tests again with ranks that are processes, and what only processes can show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.ranks import UNDER_TORCHRUN

TESTS = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="starts torchrun itself")


def torchrun(
    ranks: int, *command: str, timeout: float = 280, folder: Path = TESTS.parent
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in list(environment):
        if name.startswith("PYTEST"):
            del environment[name]
    return subprocess.run(
        [
            sys.executable,
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
            *command,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_the_operator_tests_with_four_processes():
    run = torchrun(4, "-m", "pytest", "tests/spatial", "-x", "-p", "no:cacheprovider", "-n", "0")
    passed = [int(n) for n in re.findall(r"(\d+) passed", run.stdout)]
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert len(passed) == 4
    assert min(passed) > 100
    assert " failed" not in run.stdout


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_training_gives_the_gradients_of_one_process(ranks):
    run = torchrun(ranks, "tests/ranks/training.py")
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert "all equal" in run.stdout


POOLS = {
    # A part of what is exact on threads: the engine is the same, and each process a core's work.
    4: ("tests/pipeline/test_exactness.py", "-k", "(plain or branches or plans) and not larger"),
    # Tiles, a pipeline and both directions at once; and random numbers, which threads share.
    8: (
        "tests/pipeline/test_exactness.py",
        "tests/pipeline/test_trainer.py",
        "-k",
        "(both and directions) or (chimera and 2x3) or (gems and square) or dropout or dropped",
    ),
}


@pytest.mark.parametrize("ranks", POOLS)
def test_plans_on_one_pool_of_processes(ranks):
    run = torchrun(ranks, "-m", "pytest", *POOLS[ranks], "-x", "-p", "no:cacheprovider", "-n", "0")
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed = [int(n) for n in re.findall(r"(\d+) passed", run.stdout)]
    assert len(passed) == ranks
    assert min(passed) > 10
    cases = [int(n) for n in re.findall(r"exactness: (\d+) cases", run.stdout)]
    assert max(cases) >= (20 if ranks == 4 else 8), cases


def test_the_program_for_gpus_runs_on_cpus():
    run = torchrun(4, "tests/ranks/pipelines.py", "cpu", "1")
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert "3 plans on cpu: all equal to one process" in run.stdout


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_messages_arrive(transport, ranks, monkeypatch):
    monkeypatch.setenv("MPI4DL_SHARED_MEMORY", "0" if transport == "gloo" else "1")
    run = torchrun(ranks, "tests/ranks/messages.py", transport)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert run.stdout.count("all arrived") == ranks
    if transport == "shared":
        assert run.stdout.count("noticed") == ranks - 1


def test_the_demonstration_learns_and_draws(tmp_path):
    script = str(TESTS.parent / "examples" / "segment_nuclei.py")
    size = ("--size", "97", "--batch", "1", "--steps", "12")
    run = torchrun(2, script, *size, folder=tmp_path)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    error = re.search(r"gradients against one process .*: (\S+) relative", run.stdout)
    assert error is not None
    assert float(error[1]) < 1e-11
    assert (tmp_path / "nuclei.png").read_bytes().startswith(b"\x89PNG")
