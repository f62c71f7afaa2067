"""A training that can be killed at any moment, and started again. `run.py` does both.

    torchrun --nproc-per-node 2 --max-restarts 3 benchmarks/soak/training.py run

In float64. The first rank writes every loss to `losses.jsonl`, and every rank where it is to a file
of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mpi4dl
from mpi4dl.errors import RankLost
from mpi4dl.train.checkpoints import Checkpoints
from mpi4dl.train.interruption import REQUEUE, interruptible


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--tiles", type=int, default=1, help="of the first stage")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=4, help="steps between checkpoints")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--shard", action="store_true", help="the optimizer's state (ZeRO-1)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    return parser.parse_args(words)


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    ).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(4, 3, 24, 20, generator=generator, dtype=torch.float64)
    return images, torch.randint(0, 10, (4,), generator=generator)


def trainer_of(options: argparse.Namespace, plan: mpi4dl.Plan) -> mpi4dl.Trainer:
    optimizer = partial(torch.optim.Adam, lr=1e-2)
    return mpi4dl.Trainer(
        network(options.width),
        plan,
        F.cross_entropy,
        optimizer,
        shard_optimizer=options.shard and plan.world_size > 1,
    )


def undisturbed(options: argparse.Namespace) -> list[float]:
    """The losses, from one process."""
    trainer = trainer_of(options, mpi4dl.Plan(parts=2))
    return [float(trainer.step(*batch(step))) for step in range(options.steps)]


def train(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    comm = mpi4dl.init()
    plan = mpi4dl.Plan(
        split_size=options.stages,
        num_spatial_parts=options.tiles,
        spatial_size=int(options.tiles > 1),
        slice_method="vertical",
        parts=2,
    )
    trainer = trainer_of(options, plan)
    checkpoints = Checkpoints(options.folder / "checkpoints", keep=2)
    progress = checkpoints.load(trainer) or {"next": 0}
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    status = options.folder / f"rank-{comm.rank}"
    with interruptible(trainer), (options.folder / "losses.jsonl").open("a") as losses:
        for step in range(progress["next"], options.steps):
            status.write_text(f"{os.getpid()} {attempt} {step}")
            loss = float(trainer.step(*batch(step)))
            if comm.rank == 0:
                losses.write(json.dumps({"step": step, "loss": loss}) + "\n")
                losses.flush()
            if trainer.stopping or (step + 1) % options.every == 0:
                checkpoints.save(trainer, {"next": step + 1})
            if trainer.stopping:
                checkpoints.wait()
                return REQUEUE
            time.sleep(options.pause)
    checkpoints.wait()
    return 0


def main() -> int:
    options = arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        return train(options)
    except RankLost:
        return 1  # one of the ranks has said it


if __name__ == "__main__":
    sys.exit(main())
