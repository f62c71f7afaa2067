"""When a metric stands still."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Standstill:
    """Has a metric become no better for so many evaluations? A loss is better if it is smaller."""

    metric: str
    after: int
    margin: float = 0.0
    best: float = math.nan
    waited: int = 0

    @property
    def reached(self) -> bool:
        return self.waited >= self.after

    def seen(self, values: Mapping[str, float]) -> None:
        """The values of another evaluation."""
        value = values[self.metric]
        gain = self.best - value if self.metric == "loss" else value - self.best
        if math.isnan(self.best) or gain > self.margin:
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    def __str__(self) -> str:
        return f"{self.metric} was no better than {self.best:.4g} for {self.waited} evaluations"
