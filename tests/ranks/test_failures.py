"""Ranks that are processes and are killed, stopped, or asked to end."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mpi4dl import Plan
from mpi4dl.train.checkpoints import Checkpoints
from mpi4dl.train.interruption import REQUEUE
from support.ranks import UNDER_TORCHRUN

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="starts ranks itself")

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak"
BOUND = 1e-12


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SOAK / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


training = loaded("training")
soak = loaded("run")


def until(what: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def start(folder: Path, *options: str, ranks: int) -> subprocess.Popen[str]:
    """Under `mpi4dl run`."""
    program = [str(SOAK / "training.py"), str(folder), *options]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST")}
    return subprocess.Popen(
        [sys.executable, "-m", "mpi4dl", "run", "--ranks", str(ranks), *program],
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def step_of(folder: Path, rank: int) -> int:
    file = folder / f"rank-{rank}"
    words = file.read_text().split() if file.exists() else []
    return int(words[2]) if len(words) == 3 else -1


def process_of(folder: Path, rank: int) -> int:
    return int((folder / f"rank-{rank}").read_text().split()[0])


def losses_of(folder: Path) -> dict[int, float]:
    lines = (folder / "losses.jsonl").read_text().splitlines()
    return {one["step"]: one["loss"] for one in map(json.loads, lines)}


def test_five_kills_and_the_losses_of_an_undisturbed_training(tmp_path):
    """Under torchrun, which starts the ranks again; three in training, two while saving."""
    outcome = soak.run(tmp_path, 2, 5, 1, ["--steps", "100", "--pause", "0.03", "--width", "48"])
    said = (tmp_path / "output.txt").read_text()
    assert outcome.code == 0, said
    assert sum(outcome.kills.values()) == 5
    assert outcome.difference <= BOUND, outcome
    assert outcome.messages == 5, said


def test_a_slow_rank_is_no_lost_one_and_a_killed_one_is_named_once(tmp_path):
    process = start(
        tmp_path, "--stages", "2", "--tiles", "2", "--steps", "100000", "--pause", "0.01", ranks=3
    )
    until(lambda: step_of(tmp_path, 0) > 2, process)
    rank = process_of(tmp_path, 2)
    os.kill(rank, signal.SIGSTOP)
    time.sleep(3)
    assert process.poll() is None
    os.kill(rank, signal.SIGCONT)
    seen = step_of(tmp_path, 0)
    until(lambda: step_of(tmp_path, 0) > seen + 2, process)
    os.kill(rank, signal.SIGKILL)
    killed = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - killed < 10
    assert process.returncode == 128 + signal.SIGKILL
    said = re.findall(r"mpi4dl: rank 2 \(stage 1\) has ended while rank 0 \(stage 0, .*", err + out)
    assert len(said) == 1, out + err
    assert re.search(r"waited for .*, in (step \d+|saving a checkpoint)\. All ranks stop", said[0])
    assert "Traceback" not in err, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_scheduler_asks_it_to_end_and_it_goes_on_in_another_layout(number, tmp_path):
    """By two ranks that share out the optimizer's state, from one process, and back to it."""
    known = training.arguments([str(tmp_path), "--steps", "100000"])
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    trainer = training.trainer_of(known, Plan(parts=2))
    losses = {step: float(trainer.step(*training.batch(step))) for step in range(3)}
    checkpoints.save(trainer, {"next": 3})
    checkpoints.wait()
    options = ["--stages", "1", "--tiles", "2", "--shard", "--every", "1000"]
    process = start(tmp_path, *options, "--steps", "100000", "--pause", "0.01", ranks=2)
    until(lambda: step_of(tmp_path, 0) > 5, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == REQUEUE, out + err
    trainer = training.trainer_of(known, Plan(parts=2))
    progress = checkpoints.load(trainer)
    losses |= losses_of(tmp_path)
    assert progress == {"next": len(losses)}
    for step in range(len(losses), len(losses) + 4):
        losses[step] = float(trainer.step(*training.batch(step)))
    known.steps = len(losses)
    expected = training.undisturbed(known)
    assert max(abs(losses[i] / loss - 1) for i, loss in enumerate(expected)) <= BOUND
