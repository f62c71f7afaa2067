"""What is planned and measured: plans of many kinds, for 1 to 8 ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpi4dl


@dataclass(frozen=True)
class Case:
    model: str
    size: int
    batch: int
    plan: dict[str, Any]
    choice: str = ""
    """Cases of one choice train the same on as many ranks: the planner has to pick the fastest."""

    @property
    def ranks(self) -> int:
        return mpi4dl.Plan(**self.plan).world_size

    def __str__(self) -> str:
        words = ", ".join(f"{k} {v}" for k, v in self.plan.items()) or "one rank"
        return f"{self.model} {self.size}² batch {self.batch}: {words}"


def pipeline(stages: int, parts: int, schedule: str = "gpipe", **more: Any) -> dict[str, Any]:
    return {"split_size": stages, "parts": parts, "schedule": schedule, **more}


def tiles(count: int, method: str = "square", stages: int = 1, **more: Any) -> dict[str, Any]:
    return {"num_spatial_parts": count, "slice_method": method, "split_size": stages, **more}


CASES = [
    Case("resnet18", 256, 4, {}),
    Case("resnet29", 192, 2, {"parts": 2}),
    Case("resnet50", 256, 2, {}),
    Case("amoebanet", 384, 1, {}),
    # two ranks, the same work in many ways
    Case("resnet29", 256, 4, pipeline(2, 1), "a"),
    Case("resnet29", 256, 4, pipeline(2, 4), "a"),
    Case("resnet29", 256, 4, pipeline(2, 4, "1f1b"), "a"),
    Case("resnet29", 256, 4, pipeline(2, 4, "zb-h1"), "a"),
    Case("resnet29", 256, 4, tiles(2, "horizontal"), "a"),
    Case("resnet29", 256, 4, {"replicas": 2}, "a"),
    Case("resnet18", 384, 4, pipeline(2, 2), "b"),
    Case("resnet18", 384, 4, pipeline(2, 4, "1f1b"), "b"),
    Case("resnet18", 384, 4, pipeline(4, 4, "interleaved"), "b"),
    Case("resnet18", 384, 4, tiles(2, "vertical"), "b"),
    Case("resnet18", 384, 4, {"replicas": 2}, "b"),
    Case("resnet18", 384, 4, pipeline(2, 1, "gems", times=2)),
    Case("resnet50", 512, 1, tiles(2, "horizontal"), "c"),
    Case("resnet50", 512, 1, pipeline(2, 1, "layer"), "c"),
    Case("resnet50", 384, 2, tiles(2, "horizontal", checkpoint_activations=True)),
    Case("resnet50", 256, 4, pipeline(2, 4, "1f1b", checkpoint_activations=True)),
    Case("amoebanet", 512, 2, pipeline(2, 2), "d"),
    Case("amoebanet", 512, 2, pipeline(2, 2, "1f1b"), "d"),
    Case("amoebanet", 512, 2, tiles(2, "vertical"), "d"),
    Case("amoebanet", 512, 2, {"replicas": 2}, "d"),
    Case("amoebanet", 512, 1, tiles(2, "horizontal", halo_d2=True, fused_layers=1)),
    # more ranks than this machine has cores
    Case("resnet29", 256, 4, tiles(2, "horizontal", 2, parts=2)),
    Case("resnet18", 256, 4, pipeline(4, 4, "1f1b")),
    Case("resnet18", 384, 4, tiles(4), "e"),
    Case("resnet18", 384, 4, {"replicas": 4}, "e"),
    Case("resnet18", 384, 4, pipeline(4, 4, "chimera"), "e"),
    Case("resnet29", 256, 4, tiles(4, "square", 2, parts=2)),
    Case("amoebanet", 384, 2, tiles(2, "vertical", 2, parts=2, local_dp=2)),
    Case("resnet18", 256, 8, pipeline(8, 8)),
]
