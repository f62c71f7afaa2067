"""Which samples a batch has: the same on every rank, from the seed, the epoch and its number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .reader import Array


@dataclass(frozen=True)
class Order:
    count: int
    batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool

    @property
    def batches(self) -> int:
        whole, left = divmod(self.count, self.batch_size)
        return whole + bool(left and not self.drop_last)

    def places(self, batch: int) -> range:
        """In the order of an epoch."""
        start = batch * self.batch_size
        return range(start, min(start + self.batch_size, self.count))

    def sample(self, epoch: int, place: int) -> int:
        place %= self.count
        return int(_shuffled(self.count, self.seed, epoch)[place]) if self.shuffle else place


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int, epoch: int) -> Array:
    shuffled: Array = np.random.default_rng([seed, epoch]).permutation(count)
    return shuffled
