"""Tiles, and a rule for every operator that they answer.

Importing this package registers the rules. "My operator is missing": start at `registry.py`.
"""

from . import (
    adaptive,
    along,
    autograd,
    bypasses,
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
from .registry import spatial_op
from .tile import Tile, shard, wrap

__all__ = [
    "Tile",
    "adaptive",
    "along",
    "autograd",
    "bypasses",
    "contraction",
    "convolution",
    "dimensions",
    "elementwise",
    "extremes",
    "indexing",
    "joining",
    "losses",
    "metadata",
    "normalization",
    "pad",
    "patches",
    "pooling",
    "randomness",
    "rearranging",
    "reductions",
    "repeating",
    "resize",
    "shard",
    "shuffle",
    "slicing",
    "spatial_op",
    "wrap",
]
