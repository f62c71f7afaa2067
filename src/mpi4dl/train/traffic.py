"""How many bytes a rank gives away in a step, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from .timed import Call


@dataclass(frozen=True)
class Traffic:
    """Bytes that leave a rank. What is added up over ranks, or told to all of them, counts once:
    how often it crosses the network is the transport's business."""

    halo: int = 0
    """Border pixels, there and their gradients back."""
    statistics: int = 0
    """Of normalisation, and whatever else tiles add up."""
    transfer: int = 0
    """Activations to the next stage, gradients to the one before it."""
    gradients: int = 0
    """Of parameters; running statistics count here."""

    @property
    def total(self) -> int:
        return self.halo + self.statistics + self.transfer + self.gradients

    def __add__(self, other: Traffic) -> Traffic:
        names = (field.name for field in fields(self))
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in names))


def counted(calls: Sequence[Call]) -> Traffic:
    """Of the calls of a step. What all ranks of a program tell each other, a few bytes to agree
    about a batch and its loss, is left out."""
    sums = {"halo": 0, "statistics": 0, "transfer": 0, "gradients": 0}
    for call in calls:
        if call.use == "tiles":
            sums["statistics" if call.together else "halo"] += call.sent
        elif call.use:
            sums["gradients"] += call.sent
        elif not call.together:
            sums["transfer"] += call.sent
    return Traffic(**sums)
