"""What every rank does in a step, recorded, beside what the schedule says.

    torchrun --nproc-per-node 8 benchmarks/timeline/run.py --picture timeline.png

A small ResNet in four stages of 2 + 2 + 2 + 2 ranks: the first two cut the image, the others share
the batch, and micro-batches travel in both directions (chimera). The simulation has the lengths
that forwards and backwards of each stage had, as medians over the ranks.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl.models import resnet_v2
from mpi4dl.schedule import Span, Timeline, simulate
from mpi4dl.schedule.picture import picture


def plan_for(schedule: str) -> mpi4dl.Plan:
    return mpi4dl.Plan(
        split_size=4,
        num_spatial_parts=2,
        spatial_size=2,
        local_dp=2,
        parts=4,
        times=2,
        schedule=schedule,
        balance=(4, 2, 2, 3),
    )


def per_rank(plan: mpi4dl.Plan, actors: Timeline, recorded: Timeline) -> Timeline:
    """The simulated timeline of the actors, for their ranks: each has the spans of what it did."""
    spans = {span.action: span for row in actors.spans for span in row}
    rows = [[spans[s.action] for s in row if s.action in spans] for row in recorded.spans]
    return Timeline(tuple(tuple(sorted(row, key=lambda s: s.start)) for row in rows))


def lengths(recorded: Timeline) -> dict[tuple[str, int], float]:
    """The median length of each kind of work on each stage."""
    found = defaultdict(list)
    for span in (span for row in recorded.spans for span in row):
        found[span.action.kind.value, span.action.stage].append(span.duration)
    return {key: statistics.median(values) for key, values in found.items()}


def milliseconds(timeline: Timeline) -> Timeline:
    return Timeline(
        tuple(tuple(Span(s.action, s.start * 1e3, s.stop * 1e3) for s in r) for r in timeline.spans)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--schedule", default="chimera")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--picture", type=Path, default=Path("timeline.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    mpi4dl.init()
    torch.manual_seed(0)
    plan = plan_for(options.schedule)
    sgd = partial(torch.optim.SGD, lr=0.01)
    trainer = mpi4dl.Trainer(resnet_v2(29), plan, loss=F.cross_entropy, optimizer=sgd)
    images = torch.randn(2 * plan.micro_batches, 3, options.size, options.size)
    labels = torch.randint(0, 10, (len(images),))
    recorded: list[Timeline] = []
    for _ in range(options.steps):
        trainer.step(images, labels)
        recorded.append(trainer.timeline())
    shortest = min(recorded[1:], key=lambda timeline: timeline.makespan)
    took = lengths(shortest)

    forward, backward, of_input, of_weight = (
        [took.get((kind, stage), 0.0) for stage in range(plan.split_size)] for kind in "FBIW"
    )
    simulated = simulate(
        plan.make_schedule(), forward=forward, backward=backward, input=of_input, weight=of_weight
    )
    if torch.distributed.get_rank() == 0:
        print(plan)
        print(f"recorded  {shortest.makespan * 1e3:7.1f} ms   (shortest of {options.steps - 1})")
        print(f"simulated {simulated.makespan * 1e3:7.1f} ms")
        drawn = {
            "recorded, rank by rank": milliseconds(shortest),
            "simulated from the schedule": milliseconds(per_rank(plan, simulated, shortest)),
        }
        picture(drawn, options.picture, "milliseconds")


main()
