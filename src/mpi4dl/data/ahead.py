"""`Ahead`: regions that are read by threads before they are asked for.

Decoders work outside of Python's lock, so threads are enough, and what they read need not be
copied from one process to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .dataset import Region
from .reader import Tally
from .selection import Part, Selection

When = tuple[int, int]
"""Epoch and number of a batch."""

_Key = tuple[When, int, Part]


class Ahead:
    """Used by the one thread that trains; with no workers it reads when it is asked."""

    def __init__(self, workers: int, tally: Tally) -> None:
        self._pool = ThreadPoolExecutor(workers, "mpi4dl-read") if workers else None
        self._tally = tally
        self._shelf: dict[_Key, Future[Region]] = {}

    @property
    def concurrent(self) -> bool:
        return self._pool is not None

    def begin(self, when: When, selection: Selection, parts: Iterable[Part]) -> None:
        """Start to read, unless that was done already."""
        for part in parts:
            key = _key(when, selection, part)
            if key not in self._shelf:
                begin = self._pool.submit if self._pool else _done
                self._shelf[key] = begin(selection.read, part, self._tally)

    def look(self, when: When, selection: Selection, part: Part) -> Region:
        """Waits for a region that was begun, and leaves it on the shelf."""
        return self._shelf[_key(when, selection, part)].result()

    def take(self, when: When, selection: Selection, parts: Iterable[Part]) -> list[Region]:
        """Waits for regions, and keeps none of them."""
        parts = list(parts)
        self.begin(when, selection, parts)
        return [self._shelf.pop(_key(when, selection, part)).result() for part in parts]

    def keep(self, batches: Iterable[When]) -> None:
        """Forget what belongs to others."""
        kept = set(batches)
        for key in [key for key in self._shelf if key[0] not in kept]:
            self._shelf.pop(key).cancel()

    def close(self) -> None:
        self.keep([])
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _key(when: When, selection: Selection, part: Part) -> _Key:
    return when, selection.indices[part.place], part


def _done(work: Callable[..., Region], *arguments: Any) -> Future[Region]:
    future: Future[Region] = Future()
    try:
        future.set_result(work(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future
