"""Kills ranks of a training at random moments, and sees how it ends.

    python benchmarks/soak/run.py --runs 10 --kills 5

Every run is one torchrun that may restart its ranks. A kill is SIGKILL to a rank drawn at random:
half of them at any moment after the ranks have made a step, half while a checkpoint is being
written. A run is good if it ends by itself, and each loss that it has ever computed, before and
after restarts, is that of an undisturbed training in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import training  # noqa: E402

_PATIENCE = 90.0


@dataclass
class Outcome:
    """Of one run."""

    code: int = -1
    kills: Counter[str] = field(default_factory=Counter)
    """By what the training was doing."""
    back: list[float] = field(default_factory=list)
    """Seconds from each kill to the next step."""
    messages: int = 0
    """Lines that say which rank has ended."""
    steps: int = 0
    """Different ones."""
    difference: float = float("inf")
    """The largest, relative, of any loss."""


def run(folder: Path, ranks: int, kills: int, seed: int, options: list[str]) -> Outcome:
    """One training, killed so many times."""
    draw, outcome = random.Random(seed), Outcome()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(ranks), "--max-restarts", str(kills + 2)),
                *("--monitor-interval", "0.1"),
                *(str(HERE / "training.py"), str(folder), *options),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            for attempt in range(kills):
                kill(process, folder, ranks, attempt, draw, outcome)
            began(process, folder, ranks, kills, outcome)
            outcome.code = process.wait(_PATIENCE)
        finally:
            process.kill()
    said = (folder / "output.txt").read_text()
    outcome.messages = len(re.findall(r"^mpi4dl: rank \d+ \(.*\) has ended", said, flags=re.M))
    compare(folder, options, outcome)
    return outcome


def kill(
    process: subprocess.Popen[bytes],
    folder: Path,
    ranks: int,
    attempt: int,
    draw: random.Random,
    outcome: Outcome,
) -> None:
    pids = began(process, folder, ranks, attempt, outcome)
    saving = attempt % 2 == 1
    until = time.monotonic() + _PATIENCE
    if saving:
        while not written(folder) and time.monotonic() < until:
            time.sleep(0.0005)
        time.sleep(draw.uniform(0, 0.01))
    else:
        time.sleep(draw.uniform(0, 0.5))
    what = "saving" if written(folder) else "training"
    os.kill(draw.choice(pids), signal.SIGKILL)
    outcome.kills[what] += 1
    outcome.back.append(-time.monotonic())


def written(folder: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any((folder / "checkpoints").glob(".step-*.*"))


def began(
    process: subprocess.Popen[bytes], folder: Path, ranks: int, attempt: int, outcome: Outcome
) -> list[int]:
    """Wait until all ranks have begun a step after so many restarts; their processes."""
    until = time.monotonic() + _PATIENCE
    while True:
        found = [(folder / f"rank-{rank}") for rank in range(ranks)]
        words = [path.read_text().split() for path in found if path.exists()]
        pids = [int(word[0]) for word in words if len(word) == 3 and int(word[1]) == attempt]
        if len(pids) == ranks:
            break
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"no step after {attempt} kills: {folder / 'output.txt'}")
        time.sleep(0.01)
    if outcome.back and outcome.back[-1] < 0:
        outcome.back[-1] += time.monotonic()
    return pids


def compare(folder: Path, options: list[str], outcome: Outcome) -> None:
    """With an undisturbed training."""
    expected = training.undisturbed(training.arguments([str(folder), *options]))
    lines = (folder / "losses.jsonl").read_text().splitlines()
    losses = [json.loads(line) for line in lines if line.endswith("}")]
    steps = {one["step"] for one in losses}
    outcome.steps = len(steps)
    if steps == set(range(len(expected))):
        outcome.difference = max(abs(one["loss"] / expected[one["step"]] - 1) for one in losses)


@contextmanager
def kept_folder(folder: Path | None, number: int) -> Iterator[str]:
    """Of a run; a temporary one if nobody wants to look at it."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            yield made
    else:
        (folder / str(number)).mkdir(parents=True)
        yield str(folder / str(number))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5, help="in each run")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep what the runs have written here")
    known, options = parser.parse_known_args()
    print("| run | kills while training | while saving | seconds to be back | messages | steps "
          "| largest difference | ended |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    good = 0
    for number in range(known.runs):
        with kept_folder(known.folder, number) as folder:
            seed = known.seed + number
            one = run(Path(folder), known.ranks, known.kills, seed, options)
        fine = one.code == 0 and one.difference <= 1e-12
        good += fine
        back = f"{min(one.back):.1f} to {max(one.back):.1f}" if one.back else "-"
        print(
            f"| {number} | {one.kills['training']} | {one.kills['saving']} | {back} "
            f"| {one.messages} | {one.steps} | {one.difference:.1e} "
            f"| {'well' if fine else f'badly, with {one.code}'} |",
            flush=True,
        )
    print(f"\n{good} of {known.runs} runs ended well, after {known.runs * known.kills} kills")
    return 0 if good == known.runs else 1


if __name__ == "__main__":
    sys.exit(main())
