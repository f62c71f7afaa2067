"""A moving average of the weights, of what this rank has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """Elementwise, so it does not depend on who has which weights."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.named = {name: p.detach().clone() for name, p in parameters.items()}
        self._parameters, self._values = list(parameters.values()), list(self.named.values())
        self._average = get_ema_multi_avg_fn(decay)

    def update(self) -> None:
        """After every step of the optimizer."""
        if self._values:
            self._average(self._values, [p.detach() for p in self._parameters], 1)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model's weights are the averaged ones."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._values, strict=True):
                held = parameter.detach().clone()
                parameter.copy_(value)
                value.copy_(held)
