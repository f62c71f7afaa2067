"""The most memory that this process has held."""

from __future__ import annotations

import resource
import sys

import torch

_MIB = 2**20


def peak_mib(device: torch.device) -> float:
    """On a GPU, of PyTorch's tensors there; else of the whole process, with its libraries."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _MIB
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MIB
