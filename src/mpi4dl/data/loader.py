"""`Loader`: batches of a data set, of which every rank reads only its own part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ..comm.communicator import Communicator
from ..comm.launch import init
from ..comm.objects import shared
from ..errors import DataError
from .ahead import Ahead, When
from .augment import Augmentation, drawn
from .checked import agreed, check_same, failures, only, share
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
        self._met: Communicator | None = None
        """Once they have found out that they have the same data."""
        self._tally = Tally()
        self._ahead = Ahead(workers, self._tally)
        self._usual: dict[int, tuple[Request, ...]] = {}
        """What this rank asks of a batch of so many samples."""
        self._asked: tuple[int, dict[Request, None]] | None = None
        """The size of the latest batch, and what was asked of it."""
        self._skipped: set[str] = set()
        self._waited = 0.0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._order.batches

    @property
    def steps(self) -> int:
        """The same: a batch is a step."""
        return len(self)

    def epoch(self, number: int = 0, first: int = 0) -> Iterator[tuple[Any, Any]]:
        """Images and labels of each batch of an epoch, from batch `first` on."""
        for batch in range(first, len(self)):
            yield self.batch(number, batch)

    def batch(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Images and labels of one batch. Collective, as it finds out what cannot be read."""
        self._learn()
        when = (epoch, number)
        self._ahead.keep([when, *self._following(when)])
        started = time.perf_counter()
        selection = self._readable(when, self._selection(when))
        self._waited += time.perf_counter() - started
        size = len(selection.indices)
        self._asked = size, {}
        for request in self._usual.get(size, ()):
            self._read_ahead(when, request)
        return selection.arrays(lambda request: self._answer(when, selection, request))

    def reading(self) -> Reading:
        """What this rank has read so far."""
        t = self._tally
        return Reading(
            bytes_read=t.bytes_read,
            bytes_decoded=t.bytes_decoded,
            bytes_used=t.bytes_used,
            waited=self._waited,
            skipped=tuple(sorted(self._skipped)),
        )

    def readings(self) -> list[Reading]:
        """What every rank has read so far. Collective."""
        return shared(self.reading(), self._world(), self._device)

    def close(self) -> None:
        """Stop to read ahead."""
        self._ahead.close()

    def _world(self) -> Communicator:
        if self._met is None:
            self._met = self._comm or init()
            check_same(self.dataset, self._met, self._device)
        return self._met

    def _selection(self, when: When) -> Selection:
        epoch, number = when
        samples = [self._order.sample(epoch, p) for p in self._order.places(number)]
        return self._drawn(epoch, samples)

    def _drawn(self, epoch: int, samples: Sequence[int]) -> Selection:
        augment, seed = self._augment, self._order.seed
        changes = [drawn(augment, seed, epoch, i) if augment else None for i in samples]
        return Selection(self.dataset, tuple(samples), tuple(changes))

    def _following(self, when: When) -> list[When]:
        epoch, number = when
        return [(epoch, n) for n in range(number + 1, len(self))[: self._depth]]

    def _read_ahead(self, when: When, request: Request) -> None:
        """What is asked of this batch will be asked of those after it."""
        if not self._ahead.concurrent:
            return
        for later in self._following(when):
            selection = self._selection(later)
            if request.places.stop <= len(selection.indices):
                self._ahead.begin(later, selection, request.parts())

    def _answer(self, when: When, selection: Selection, request: Request) -> list[Region]:
        size = len(selection.indices)
        if self._asked is not None and self._asked[0] == size:
            self._asked[1][request] = None
        if request not in self._usual.get(size, ()):
            self._read_ahead(when, request)
        started = time.perf_counter()
        regions = self._ahead.take(when, selection, request.parts())
        self._waited += time.perf_counter() - started
        self._tally.use(sum(region.stored for region in regions))
        return regions

    def _learn(self) -> None:
        """Another batch begins: now it is known what is asked of one like the latest."""
        if self._asked is not None:
            size, requests = self._asked
            self._usual[size] = tuple(requests)

    def _readable(self, when: When, selection: Selection) -> Selection:
        """The same one, or one with others in place of what some rank cannot read."""
        comm = self._world()
        if self.dataset.lasting or (comm.size == 1 and not self._skip):
            return selection
        count, places = len(selection.indices), list(self._order.places(when[1]))
        wanted = list(range(count))
        for _ in range(self._order.count):
            usual = self._usual.get(count)
            requests = share(selection, wanted, comm) if usual is None else only(usual, wanted)
            mine = failures(self._ahead, when, selection, requests, keep=usual is not None)
            found = agreed(mine, comm, self._device)
            if not found:
                return selection
            for place, failure in found.items():
                if not (failure.damaged and self._skip):
                    raise DataError(failure.message)
                self._skipped.add(self.dataset.name(selection.indices[place]))
                places[place] += 1
            samples = [self._order.sample(when[0], p) for p in places]
            selection, wanted = self._drawn(when[0], samples), list(found)
        raise DataError(f"none of the {self._order.count} samples can be read: {failure.message}")
