"""Checkpoints that any layout can go on from."""

from .checkpoints import Checkpoints
from .weights import export_weights, read_weights

__all__ = ["Checkpoints", "export_weights", "read_weights"]
