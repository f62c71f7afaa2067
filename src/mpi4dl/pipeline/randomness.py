"""The random numbers of a micro-batch on a stage depend on nothing but which these are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch


def mixed(*numbers: int) -> int:
    """A seed; neighbouring numbers give unrelated ones."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(sha256(text).digest()[:7], "big")


@contextmanager
def own_randomness(seed: int, micro_batch: int, stage: int, device: torch.device) -> Iterator[None]:
    """So they are the same in every schedule, and all tiles of the stage stay in step."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(mixed(seed, micro_batch, stage))
        yield
