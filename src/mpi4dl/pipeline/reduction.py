"""Gradients of a stage are added up over all that have it, while backward still goes on.

last backward of the stage      ─── layer 3 ─── layer 2 ─── layer 1 ───▶ R
its buckets, in this order           └─ 0 ─────────┴─ 1 ──────┴─ 2 ──────┘ wait
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..comm.communicator import Communicator, Pending
from ..comm.gradients import Bucket, bucketed

AddUp = Callable[[Tensor], Pending]
"""Begins to replace a tensor by its sum over all copies of a stage."""


class Reduction:
    """Of one stage. A bucket starts when all its gradients are there and those before it started:
    so all copies start them in one order."""

    def __init__(self, parameters: Sequence[Tensor], add_up: AddUp) -> None:
        # Backward comes from the end, so the last parameters are ready first.
        groups = bucketed(list(reversed(parameters)))
        self._add_up = add_up
        self._buckets = [Bucket(group) for group in groups]
        self._sizes = [len(group) for group in groups]
        self._missing: list[int] | None = None
        self._started = 0
        for number, group in enumerate(groups):
            for parameter in group:
                parameter.register_post_accumulate_grad_hook(self._ready(number))

    def last_backward(self) -> None:
        """The backward that begins now is the last that adds to these gradients."""
        self._missing = list(self._sizes)

    def start(self) -> None:
        """All gradients of this rank are there."""
        self._start(len(self._buckets))

    def finish(self) -> None:
        """The gradients are those of all copies."""
        for bucket in self._buckets:
            bucket.finish()
        self._missing, self._started = None, 0

    def _ready(self, number: int) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if self._missing is None:
                return
            self._missing[number] -= 1
            complete = next((i for i, n in enumerate(self._missing) if n > 0), len(self._missing))
            self._start(complete)

        return ready

    def _start(self, stop: int) -> None:
        while self._started < stop:
            self._buckets[self._started].start(self._add_up)
            self._started += 1


def add_up_mirrored(direction: Communicator, pair: Communicator) -> AddUp:
    """First among the copies of one direction, then each with its mirrored rank, point to point."""
    other = 1 - pair.rank

    def add_up(tensor: Tensor) -> Pending:
        return _Mirrored(tensor, direction.start_all_reduce(tensor), pair, other)

    return add_up


class _Mirrored:
    def __init__(self, tensor: Tensor, own: Pending, pair: Communicator, other: int) -> None:
        self._tensor, self._own, self._pair, self._other = tensor, own, pair, other

    def wait(self) -> None:
        self._own.wait()
        theirs = torch.empty_like(self._tensor)
        self._pair.start([(self._other, self._tensor)], [(self._other, theirs)]).wait()
        self._tensor += theirs  # a + b is b + a: both have the same bits
