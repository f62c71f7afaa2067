"""`Ahead`: regions that are read by threads before they are asked for.

Decoders work outside of Python's lock, so threads are enough, and what they read need not be
copied from one process to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..geometry import Box
from .dataset import Region
from .reader import Tally
from .selection import Request, Selection


@dataclass(frozen=True)
class Key:
    """One region of one sample, where it stands in an epoch."""

    batch: tuple[int, int]
    """Epoch and number."""

    place: int
    index: int
    masks: bool
    box: Box


class Ahead:
    """Used by the one thread that trains; with no workers it reads when it is asked."""

    def __init__(self, workers: int, tally: Tally) -> None:
        self._pool = ThreadPoolExecutor(workers, "mpi4dl-read") if workers else None
        self._tally = tally
        self._shelf: dict[Key, Future[Region]] = {}

    @property
    def concurrent(self) -> bool:
        return self._pool is not None

    def begin(
        self, batch: tuple[int, int], selection: Selection, requests: Iterable[Request]
    ) -> None:
        """Start to read, unless that is going on already."""
        for request in requests:
            for place in request.samples:
                self._future(batch, selection, place, request)

    def region(
        self, batch: tuple[int, int], selection: Selection, place: int, request: Request
    ) -> Region:
        """Waits for it. It stays on the shelf until `take`."""
        return self._future(batch, selection, place, request).result()

    def take(self, batch: tuple[int, int], selection: Selection, request: Request) -> list[Region]:
        """Waits for what a slice asks for, and keeps none of it."""
        self.begin(batch, selection, [request])
        keys = [_key(batch, selection, place, request) for place in request.samples]
        return [self._shelf.pop(key).result() for key in keys]

    def keep(self, batches: Iterable[tuple[int, int]]) -> None:
        """Forget what belongs to others."""
        kept = set(batches)
        for key in [key for key in self._shelf if key.batch not in kept]:
            self._shelf.pop(key).cancel()

    def close(self) -> None:
        self.keep([])
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _future(
        self, batch: tuple[int, int], selection: Selection, place: int, request: Request
    ) -> Future[Region]:
        key = _key(batch, selection, place, request)
        if key not in self._shelf:
            work = (selection.read, place, request.masks, request.box, self._tally)
            self._shelf[key] = self._pool.submit(*work) if self._pool else _done(*work)
        return self._shelf[key]


def _key(batch: tuple[int, int], selection: Selection, place: int, request: Request) -> Key:
    return Key(batch, place, selection.indices[place], request.masks, request.box)


def _done(work: Callable[..., Region], *arguments: Any) -> Future[Region]:
    future: Future[Region] = Future()
    try:
        future.set_result(work(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future
