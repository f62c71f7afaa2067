"""The checkpoints of a run: the last ones, and the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...pipeline import Trainer
from ..checkpoints import Checkpoints
from .sections import Configuration

AVERAGE = "average"
"""What checkpoints call the averaged weights."""

LAST, BEST = "checkpoints", "best"
"""Folders within that of the run."""


@dataclass
class Position:
    """How far a run has come."""

    epoch: int = 0
    in_epoch: int = 0
    """Batches of this epoch that are done."""
    steps: int = 0
    """Batches that are done, of all epochs."""


class Keeping:
    def __init__(self, configuration: Configuration, trainer: Trainer) -> None:
        c, folder = configuration.checkpoints, Path(configuration.folder)
        self._trainer, self._said = trainer, c
        self._last = Checkpoints(folder / LAST, c.keep, c.asynchronous)
        self._best = Checkpoints(folder / BEST, 1, c.asynchronous)
        self.best: float | None = None
        """Of the metric that decides which one is the best."""
        self._saved: int | None = None

    @property
    def wanted(self) -> bool:
        return bool(self._said.every or self._said.every_steps)

    def load(self) -> dict[str, Any] | None:
        """The progress of the last checkpoint, if the run goes on from one. Collective."""
        return self._last.load(self._trainer) if self._said.resume and self.wanted else None

    def save(self, progress: dict[str, Any]) -> None:
        """Collective."""
        if self._saved != self._trainer.steps:
            self._last.save(self._trainer, progress)
            self._saved = self._trainer.steps

    def seen(self, values: Mapping[str, float], progress: Callable[[], dict[str, Any]]) -> None:
        """An evaluation: the best one so far is kept. Collective."""
        name = self._said.best
        if name is None or math.isnan(values[name]):
            return
        value = values[name]
        better = self.best is None or (value < self.best if name == "loss" else value > self.best)
        if better:
            self.best = value
            self._best.save(self._trainer, progress())

    def finish(self, progress: dict[str, Any]) -> None:
        """At the end, or when the run was asked to stop. Collective."""
        if self.wanted:
            self.save(progress)
        self._last.wait()
        self._best.wait()
