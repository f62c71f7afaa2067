"""Predicted against measured: plans of many kinds, trained on this machine.

    python benchmarks/planner/run.py calibrate                    writes machine.json
    python benchmarks/planner/run.py measure --cases 0:9          adds to measured.json
    python benchmarks/planner/run.py report                       the table, the picture, the bars

The machine is measured by `mpi4dl calibrate` alone, on convolutions and networks of its own: none
of the models here is in it. Predictions are made anew for every report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case

import mpi4dl
from models import MODELS
from mpi4dl.planner.calibrate import calibrate, load_machine
from mpi4dl.planner.prediction import Prediction, Setting, predicted
from mpi4dl.planner.profile import Profile

HERE = Path(__file__).resolve().parent
BARS = {"memory, mean": 0.05, "memory, worst": 0.12, "time, mean": 0.10}
CHOICE = 0.05


@dataclass(frozen=True)
class Compared:
    case: Case
    predicted: Prediction
    seconds: float
    peaks: tuple[int, ...]

    @property
    def time_error(self) -> float:
        return self.predicted.seconds / self.seconds - 1

    @property
    def memory_errors(self) -> list[float]:
        return [self.predicted.peak_of(r) / peak - 1 for r, peak in enumerate(self.peaks)]

    @property
    def memory_error(self) -> float:
        """Of the rank that is predicted worst."""
        return max(self.memory_errors, key=abs)


def measure(case: Case, steps: int) -> dict[str, Any]:
    words = json.dumps({k: v for k, v in asdict(case).items() if k != "choice"})
    command = [sys.executable, "-m", "mpi4dl", "run", "--ranks", str(case.ranks)]
    command += [str(HERE / "measure.py"), words, str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search("MEASURED (.*)", done.stdout)
    if found is None:
        raise SystemExit(f"{case}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(found[1])
    return result


def predict(case: Case, machine: Path) -> Prediction:
    device, cluster = load_machine(str(machine))
    with torch.device("meta"):
        model = MODELS[case.model]()
    profile = Profile(model, (3, case.size, case.size))
    plan = profile.balanced(mpi4dl.Plan(**case.plan))
    return predicted(profile, plan, Setting(case.batch, device, cluster))


def compare(machine: Path, measured: Path) -> list[Compared]:
    known = json.loads(measured.read_text())
    rows = []
    for case in CASES:
        if str(case) in known:
            found = known[str(case)]
            peaks = tuple(rank["together"] for rank in found["ranks"])
            seconds = statistics.median(found["seconds"])
            rows.append(Compared(case, predict(case, machine), seconds, peaks))
    return rows


def report(rows: list[Compared]) -> None:
    print(
        "| | ranks | seconds | predicted | | MiB | predicted | |\n|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        errors = row.memory_errors
        worst = errors.index(row.memory_error)
        peak, expected = row.peaks[worst] / 2**20, row.predicted.peak_of(worst) / 2**20
        print(
            f"| {row.case} | {row.case.ranks} | {row.seconds:.3f} | {row.predicted.seconds:.3f} | "
            f"{row.time_error:+.1%} | {peak:.0f} | {expected:.0f} | {row.memory_error:+.1%} |"
        )
    memory = [abs(e) for row in rows for e in row.memory_errors]
    found = {
        "memory, mean": statistics.mean(memory),
        "memory, worst": max(memory),
        "time, mean": statistics.mean(abs(row.time_error) for row in rows),
    }
    print(f"\n{len(rows)} plans, {len(memory)} ranks")
    for name, value in found.items():
        verdict = "met" if value <= BARS[name] else "missed"
        print(f"{name:16s} {value:6.1%}   bar {BARS[name]:.0%}: {verdict}")
    for choice in sorted({row.case.choice for row in rows} - {""}):
        group = [row for row in rows if row.case.choice == choice]
        chosen = min(group, key=lambda row: row.predicted.seconds)
        best = min(group, key=lambda row: row.seconds)
        loss = chosen.seconds / best.seconds - 1
        verdict = "met" if loss <= CHOICE else f"missed; the best is {best.case}"
        print(f"choice {choice} of {len(group)}: {chosen.case}, {loss:+.1%} of the best: {verdict}")


def picture(rows: list[Compared], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    times, memory = figure.subplots(1, 2)
    pairs = [(row.seconds, row.predicted.seconds) for row in rows]
    peaks = [
        (peak / 2**20, row.predicted.peak_of(rank) / 2**20)
        for row in rows
        for rank, peak in enumerate(row.peaks)
    ]
    for axis, points, unit in ((times, pairs, "seconds of a step"), (memory, peaks, "peak MiB")):
        low, high = min(map(min, points)) * 0.8, max(map(max, points)) * 1.25
        axis.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], alpha=0.15)
        axis.plot([low, high], [low, high], lw=1, color="grey")
        axis.scatter(*zip(*points, strict=True), s=16, color="#3d6ea5")
        axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
            scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            scale.set_minor_formatter(NullFormatter())
        axis.set_xlabel(f"measured: {unit}")
        axis.set_ylabel("predicted (band: ±10 %)")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("calibrate", "measure", "report"))
    parser.add_argument("--cases", default=f"0:{len(CASES)}", help="such as 0:9")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--machine", type=Path, default=Path("machine.json"))
    parser.add_argument("--measured", type=Path, default=Path("measured.json"))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.what == "calibrate":
        calibrate(str(options.machine))
    elif options.what == "measure":
        known = json.loads(options.measured.read_text()) if options.measured.exists() else {}
        for case in CASES[slice(*map(int, options.cases.split(":")))]:
            known[str(case)] = measure(case, options.steps)
            options.measured.write_text(json.dumps(known, indent=1))
            print(case, [round(s, 3) for s in known[str(case)]["seconds"]], flush=True)
    else:
        rows = compare(options.machine, options.measured)
        report(rows)
        if options.picture:
            picture(rows, options.picture)


main()
