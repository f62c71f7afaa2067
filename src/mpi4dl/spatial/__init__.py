"""Tiles, and a rule for every operator that they answer.

Importing this package registers the rules. "My operator is missing": start at `registry.py`.
"""

from . import convolution, elementwise, metadata
from .registry import spatial_op
from .tile import Tile, redistribute, shard, wrap

__all__ = [
    "Tile",
    "convolution",
    "elementwise",
    "metadata",
    "redistribute",
    "shard",
    "spatial_op",
    "wrap",
]
