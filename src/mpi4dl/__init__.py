"""mpi4dl: train any PyTorch vision model, unmodified, on images of any size.

mpi4dl.init()
tile = mpi4dl.shard(image, grid=(2, 2))
loss = torch.nn.functional.cross_entropy(model(tile), labels)
loss.backward()
mpi4dl.sync_gradients(model)
"""

from .comm.gradients import sync_gradients
from .comm.launch import init, shutdown
from .errors import (
    CheckpointError,
    DamagedFile,
    DataError,
    GeometryError,
    LaunchError,
    LayoutMismatch,
    Mpi4dlError,
    NonFiniteError,
    PlanError,
    RankLost,
    UnsupportedOperator,
    UsageError,
)
from .geometry import Box, Interval, Layout
from .pipeline import Plan, Trainer
from .planner import plan
from .spatial import FusedHalo, Tile, fused_halo, shard, spatial_op, wrap

__version__ = "0.1.0"

__all__ = [
    "Box",
    "CheckpointError",
    "DamagedFile",
    "DataError",
    "FusedHalo",
    "GeometryError",
    "Interval",
    "LaunchError",
    "Layout",
    "LayoutMismatch",
    "Mpi4dlError",
    "NonFiniteError",
    "Plan",
    "PlanError",
    "RankLost",
    "Tile",
    "Trainer",
    "UnsupportedOperator",
    "UsageError",
    "fused_halo",
    "init",
    "plan",
    "shard",
    "shutdown",
    "spatial_op",
    "sync_gradients",
    "wrap",
]
