"""Training as a command: flags, checks, progress, reports. `bench` is the entrance, and `halo` that
of the benchmarks which only exchange halos."""

from .benchmark import bench, flags
from .halo import HALO, halo, halo_flags
from .kinds import KINDS, MODELS

__all__ = ["HALO", "KINDS", "MODELS", "bench", "flags", "halo", "halo_flags"]
