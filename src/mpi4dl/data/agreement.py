"""Ranks find out together what any of them could not read, before they compute with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..comm.communicator import Communicator
from ..comm.objects import shared


@dataclass(frozen=True)
class Failure:
    message: str
    damaged: bool
    """Whether the file is to blame, and not the machine."""


def agreed(
    failures: dict[int, Failure], comm: Communicator, device: Any = None
) -> dict[int, Failure]:
    """Of which places of the batch, on any rank, in the words of the first. Collective."""
    count = comm.all_gather(torch.tensor([len(failures)], device=device))
    if not count.any():
        return {}
    found: dict[int, Failure] = {}
    for one in reversed(shared(failures, comm, device)):
        found |= one
    return dict(sorted(found.items()))
