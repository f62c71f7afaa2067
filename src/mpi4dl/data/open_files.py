"""Files that stay open as long as they are likely to be asked for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from .reader import RegionReader

MOST = 64
MOST_BYTES = 256 * 2**20
"""Of pixels that readers hold because their formats cannot be read by region."""


@dataclass
class _Slot:
    reader: RegionReader | None = None
    users: int = 0
    opening: Lock = field(default_factory=Lock)


class OpenFiles:
    """Opens with `open_one(*key)`. A file in use is never closed."""

    def __init__(self, open_one: Callable[..., RegionReader]) -> None:
        self._open_one = open_one
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def of(self, *key: Any) -> Iterator[RegionReader]:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            slot.users += 1
        try:
            with slot.opening:
                if slot.reader is None:
                    slot.reader = self._open_one(*key)
            yield slot.reader
        finally:
            with self._lock:
                slot.users -= 1
                self._close_some()

    def _close_some(self) -> None:
        held = sum(s.reader.held for s in self._slots.values() if s.reader is not None)
        for key, slot in list(self._slots.items()):
            if len(self._slots) <= MOST and held <= MOST_BYTES:
                return
            if slot.users == 0:
                del self._slots[key]
                if slot.reader is not None:
                    held -= slot.reader.held
                    slot.reader.close()

    def close(self) -> None:
        with self._lock:
            for slot in self._slots.values():
                if slot.reader is not None:
                    slot.reader.close()
            self._slots.clear()
