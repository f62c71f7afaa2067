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
    generators = _generators(device)
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        # torch.manual_seed takes a millisecond: it writes down the stack, for GPUs not yet in use.
        generator.manual_seed(mixed(seed, micro_batch, stage))
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    """Those that layers on this device draw from."""
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
