"""Tiles, and a rule for every operator that they answer.

Importing this package registers the rules. "My operator is missing": start at `registry.py`.
"""

from . import (  # noqa: F401 - for the rules that they register
    adaptive,
    along,
    autocast,
    autograd,
    bypasses,
    checkpointing,
    contraction,
    convolution,
    dimensions,
    elementwise,
    extremes,
    indexing,
    joining,
    losses,
    metadata,
    normalization,
    pad,
    patches,
    pooling,
    randomness,
    rearranging,
    reductions,
    repeating,
    resize,
    shuffle,
    slicing,
)
from .fused_halo import FusedHalo, fused_halo
from .registry import spatial_op
from .tile import Tile, shard, wrap

__all__ = ["FusedHalo", "Tile", "fused_halo", "shard", "spatial_op", "wrap"]
