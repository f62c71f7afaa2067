"""Where a rank computes."""

from __future__ import annotations

import os

import torch

from ..comm.communicator import Communicator


def device_for(asked: str | None, comm: Communicator) -> torch.device:
    """NCCL binds a GPU to each rank; others share those that there are."""
    nccl = torch.distributed.is_initialized() and torch.distributed.get_backend() == "nccl"
    if asked == "cpu" or (asked is None and not torch.cuda.is_available()):
        return torch.device("cpu")
    if nccl or (asked is None and comm.size > 1):
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    device = torch.device(asked or "cuda")
    if device.index is not None:
        return device
    local_rank = int(os.environ.get("LOCAL_RANK", comm.rank))
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
