"""float16 has few small numbers: losses are scaled up, and gradients down again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

_GROWTH_INTERVAL = 2000  # steps, as torch.amp.GradScaler has it
_LARGEST = 2.0**24


@dataclass
class LossScale:
    """As `torch.amp.GradScaler`, which knows the gradients of one process only.

    Here all ranks have heard whether the gradient of the whole model is finite, and do the same.
    """

    enabled: bool
    value: float = field(init=False)
    good: int = 0
    """Updates since the last one that was not finite."""

    def __post_init__(self) -> None:
        self.value = 2.0**16 if self.enabled else 1.0

    def unscale(self, parameters: Iterable[Tensor], factor: float = 1.0) -> None:
        """Make gradients what they are, times `factor`."""
        factor /= self.value
        if factor == 1:
            return
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad *= factor

    def update(self, finite: bool) -> None:
        if not self.enabled:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good % _GROWTH_INTERVAL == 0:
            self.value = min(self.value * 2, _LARGEST)
