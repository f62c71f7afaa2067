"""The MPI backend with real processes: what PyTorch expects of any backend, and bad endings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.ranks import UNDER_TORCHRUN

TESTS = Path(__file__).parent.parent
MPIRUN = Path(sys.executable).parent / "mpirun"
# mpirun would end the others at once, and they could say nothing: it sees only that a shell lives.
UNNOTICED = ("sh", "-c", '"$0" "$@"; status=$?; sleep 20; exit $status')
pytestmark = [
    pytest.mark.skipif(UNDER_TORCHRUN, reason="starts mpirun itself"),
    pytest.mark.skipif(not MPIRUN.exists(), reason="pip install mpich brings mpirun"),
]


def mpirun(
    ranks: int, script: str, *words: str, before: tuple[str, ...] = (), timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    for name in list(environment):
        if name.startswith("PYTEST"):
            del environment[name]
    program = (sys.executable, str(TESTS / "ranks" / script), *words)
    return subprocess.run(
        [str(MPIRUN), "-np", str(ranks), *before, *program],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("backend", ["gloo", "mpi4py"])
def test_what_pytorch_expects_of_a_backend(backend, ranks):
    run = mpirun(ranks, "backend.py", backend)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-5000:]
    assert "all as expected" in run.stdout


def test_the_name_mpi_is_ours_where_pytorch_has_no_mpi():
    run = mpirun(2, "backend.py", "mpi", "send_and_receive", "reductions", "groups_of_some")
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-5000:]
    assert run.stdout.count("ok ") == 3


def test_messages_of_the_communicator_arrive():
    for ranks in (2, 3):
        run = mpirun(ranks, "messages.py", "mpi")
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-5000:]
        assert run.stdout.count("all arrived") == ranks


@pytest.mark.parametrize(
    ("ending", "waiting", "said"),
    [
        ("killed", "receiving", r"rank 1 has ended while rank 0 waited: recv of \(4,\)"),
        ("killed", "with_a_future", "rank 1 has ended while rank 0 waited: all_reduce"),
        ("leaves", "adding_up", "rank 1 has ended while rank 0 waited: all_reduce"),
        ("raises", "exchanging", "rank 1 has ended while rank 0 waited: exchange with ranks .1"),
        ("silent", "receiving", "rank 0 waited 3 seconds: recv of .* from rank 1, tag 3"),
        ("sends_more", "receiving", r"recv of \(4,\) .* failed on rank 0: Message truncated"),
        ("sends_less", "receiving", r"recv of \(4,\) .* expects 16 bytes, and 12 came"),
        ("silent", "meeting", "rank 0 waited 2 seconds in monitored_barrier for rank 1"),
    ],
)
def test_who_waits_for_a_rank_that_does_not_come_is_told(ending, waiting, said):
    started = time.monotonic()
    run = mpirun(3, "endings.py", ending, waiting, before=UNNOTICED, timeout=120)
    assert run.returncode != 0
    assert re.search(said, run.stderr), run.stderr[-5000:]
    waited = [float(seconds) for seconds in re.findall(r"knew after (\S+) s", run.stdout)]
    assert waited
    assert max(waited) < 10
    assert time.monotonic() - started < 100


def test_mpirun_ends_the_others_when_a_rank_is_killed():
    run = mpirun(3, "endings.py", "killed", "receiving", timeout=60)
    assert run.returncode != 0
    assert "BAD TERMINATION" in run.stdout + run.stderr


def test_importing_mpi4dl_does_not_start_mpi():
    program = "import mpi4dl, sys; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert shutil.which("python", path=str(MPIRUN.parent))
