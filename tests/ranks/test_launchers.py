"""The same program under every launcher: real ones, with real processes that end and die."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import slurm
from support.ranks import UNDER_TORCHRUN

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="starts launchers itself")

PROGRAM = str(Path(__file__).parent / "launched.py")
BIN = Path(sys.prefix) / "bin"
OPEN_MPI = Path(sys.prefix) / "openmpi"

COMMANDS = {
    "mpi4dl": [str(BIN / "mpi4dl"), "run", "--ranks", "3", PROGRAM],
    "spawn": [sys.executable, PROGRAM],
    "torchrun": [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "3", PROGRAM),
    ],
    "MPICH": [str(BIN / "mpirun"), "-np", "3", sys.executable, PROGRAM],
    "Open MPI": [
        *(str(OPEN_MPI / "bin" / "mpirun"), "--allow-run-as-root", "--oversubscribe"),
        *("-np", "3", sys.executable, PROGRAM),
    ],
    "srun": ["srun", "--ntasks", "3", "--kill-on-bad-exit=1", sys.executable, PROGRAM],
}
NAMED = {"spawn": "mpi4dl"}


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """The environment for each launcher; only srun needs more than ours."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "SLURM", "MPI4DL", "PMI", "OMPI"))
    }
    ours["OMP_NUM_THREADS"] = "1"
    found = dict.fromkeys(COMMANDS, ours)
    found["Open MPI"] = {**ours, "MPI4PY_LIBMPI": str(OPEN_MPI / "lib" / "libmpi.so.40")}
    del found["srun"]
    if slurm.missing():
        yield found
        return
    with slurm.cluster(tmp_path_factory.mktemp("slurm"), free_ports()) as cluster:
        yield {**found, "srun": {**cluster, "OMP_NUM_THREADS": "1"}}


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def start(launcher: str, environments, what: str) -> subprocess.Popen[str]:
    if launcher not in environments:
        pytest.skip(slurm.missing())
    if not shutil.which(COMMANDS[launcher][0], path=environments[launcher].get("PATH")):
        pytest.skip(f"{COMMANDS[launcher][0]} is not installed")
    command = [*COMMANDS[launcher], what, *(["spawn"] if launcher == "spawn" else [])]
    return subprocess.Popen(
        command,
        env=environments[launcher],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("launcher", COMMANDS)
def test_the_ranks_find_each_other_and_compute_what_one_process_does(launcher, environments):
    out, err = (process := start(launcher, environments, "end")).communicate(timeout=120)
    assert process.returncode == 0, out + err
    ranks = re.findall(r"rank (\d) of 3: exact over (gloo|mpi4py)", out)
    assert sorted(rank for rank, _ in ranks) == ["0", "1", "2"], out + err
    (line,) = re.findall(r"mpi4dl: 3 ranks on this machine \((.*?)\)", err + out)
    assert line == NAMED.get(launcher, launcher)


SMALL = "--num-layers 3 --num-filters 8 --image-size 64 --batch-size 2 --steps 1".split()


def test_a_script_of_the_original_runs_as_tasks_of_slurm(environments):
    if "srun" not in environments:
        pytest.skip(slurm.missing())
    script = Path(__file__).parents[2] / "benchmarks/spatial_parallelism/benchmark_amoebanet_sp.py"
    done = subprocess.run(
        ["srun", "--ntasks", "3", sys.executable, str(script), "--num-spatial-parts", "2", *SMALL],
        env=environments["srun"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 stages on 3 ranks (2 + 1 = 3)" in done.stdout
    assert done.stdout.count("images per second") == 1, "one task speaks"
    assert re.search(r"^Mean [\d.]+ Median [\d.]+$", done.stdout, flags=re.M)
    assert "mpi4dl: 3 ranks on this machine (srun), gloo" in done.stderr


@pytest.mark.parametrize("launcher", COMMANDS)
def test_one_rank_is_killed_and_all_end(launcher, environments):
    started = time.monotonic()
    out, err = (process := start(launcher, environments, "die")).communicate(timeout=120)
    assert process.returncode != 0, out + err
    assert time.monotonic() - started < 60
    if launcher in ("mpi4dl", "spawn"):
        assert "rank 1 was ended by SIGKILL; ending the other 2" in err
        assert process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("launcher", ["mpi4dl", "spawn"])
def test_an_exit_code_is_passed_on(launcher, environments):
    out, err = (process := start(launcher, environments, "exit")).communicate(timeout=120)
    assert process.returncode == 7, out + err
    assert "rank 1 exited with 7" in err
    assert re.search(r"^\[0\] rank 0 of 3", out, flags=re.M)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_stops_the_launcher_stops_its_ranks(number, environments):
    process = start("mpi4dl", environments, "wait")
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    children = [int(child) for child in listed.split()]
    assert len(children) == 3
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 10
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline, "ranks live on after their launcher"
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
