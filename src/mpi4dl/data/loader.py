"""`Loader`: batches of a data set, of which every rank reads only its own part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ..comm.communicator import Communicator
from ..comm.launch import init
from ..comm.objects import shared
from ..errors import DataError
from ..geometry import Layout
from .agreement import Failure, agreed
from .ahead import Ahead
from .augment import Augmentation, drawn
from .dataset import Dataset, Region
from .order import Order
from .reader import Tally
from .reading import Reading
from .selection import Request, Selection


class Loader:
    """Batches for `Trainer.step`, the same ones on every rank.

        loader = mpi4dl.data.Loader(dataset, batch_size=4, workers=2)
        for epoch in range(10):
            for images, labels in loader.epoch(epoch):
                trainer.step(images, labels)

    Images and masks are read when they are sliced, which a trainer does for the region of its rank;
    from the second batch on, `workers` threads read that region `ahead` batches early.

    * The order of an epoch, and what `augment` draws for a sample, follow from `seed`, the epoch
      and the sample alone: `loader.epoch(3, first=7)` goes on where a run was interrupted.
    * `drop_last` leaves out what is fewer than a batch at the end of an epoch.
    * `damaged`: files that cannot be read are an error (`raise`), the same on all ranks, before
      any of them computes; or (`skip`) the next samples of the order take their places.
    * `comm` are the ranks that take part, by default all. Every rank makes the same calls.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        augment: Sequence[Augmentation] = (),
        workers: int = 0,
        ahead: int = 1,
        drop_last: bool = True,
        damaged: Literal["raise", "skip"] = "raise",
        comm: Communicator | None = None,
        device: Any = None,
    ) -> None:
        if damaged not in ("raise", "skip"):
            raise DataError(f"damaged is {damaged!r}; it must be 'raise' or 'skip'")
        for name, number, least in (
            ("batch_size", batch_size, 1),
            ("seed", seed, 0),
            ("workers", workers, 0),
            ("ahead", ahead, 1),
        ):
            if number < least:
                raise DataError(f"{name} is {number}; it must be at least {least}")
        self._order = Order(len(dataset), batch_size, seed, shuffle, drop_last)
        if self._order.batches == 0:
            raise DataError(
                f"the data set has {len(dataset)} samples, and a batch takes {batch_size}: use a "
                "smaller batch"
            )
        self.dataset = dataset
        self._augment, self._skip, self._depth = tuple(augment), damaged == "skip", ahead
        self._comm, self._device = comm, device
        self._tally = Tally()
        self._ahead = Ahead(workers, self._tally)
        self._requests: dict[int, list[Request]] = {}
        """What this rank asks of a batch of so many samples."""
        self._latest: int | None = None
        self._skipped: dict[str, None] = {}
        self._waited = 0.0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._order.batches

    def epoch(self, number: int = 0, first: int = 0) -> Iterator[tuple[Any, Any]]:
        """Images and labels of each batch of an epoch, from batch `first` on."""
        for batch in range(first, len(self)):
            yield self.batch(number, batch)

    def batch(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Images and labels of one batch. Collective, as it finds out what cannot be read."""
        raise NotImplementedError

    def reading(self) -> Reading:
        """What this rank has read so far."""
        raise NotImplementedError

    def readings(self) -> list[Reading]:
        """What every rank has read so far. Collective."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop to read ahead."""
        self._ahead.close()
