"""Tiles, and a rule for every operator that they answer.

Importing this package registers the rules. "My operator is missing": start at `registry.py`.
"""

from . import (
    adaptive,
    along,
    autograd,
    convolution,
    dimensions,
    elementwise,
    extremes,
    losses,
    metadata,
    normalization,
    pooling,
    randomness,
    reductions,
    resize,
    shuffle,
)
from .registry import spatial_op
from .tile import Tile, redistribute, shard, wrap

__all__ = [
    "Tile",
    "adaptive",
    "along",
    "autograd",
    "convolution",
    "dimensions",
    "elementwise",
    "extremes",
    "losses",
    "metadata",
    "normalization",
    "pooling",
    "randomness",
    "redistribute",
    "reductions",
    "resize",
    "shard",
    "shuffle",
    "spatial_op",
    "wrap",
]
