"""Training as a command: flags, checks, progress, reports. `bench` is the entrance."""

from .benchmark import bench, flags
from .kinds import KINDS, MODELS

__all__ = ["KINDS", "MODELS", "bench", "flags"]
