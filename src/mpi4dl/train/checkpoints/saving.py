"""One save: every rank writes its part, and the first rank makes a checkpoint of the parts.

    rank 0   part-00000.safetensors  part-00000.json ─┐ all there: checkpoint.json, rename
    rank 1   part-00001.safetensors  part-00001.json ─┘

That a part is whole and on the disk, its index says by being there. So ranks need not talk while
they write; training goes on, over whatever transport.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .folder import complete_it
from .index import Index
from .storage import INDEX, SafetensorsWriter, write_alone, write_text

_LOOK = 0.02
"""Seconds between looks at whether all parts are there."""
_AFTER_THE_END = 2.0
"""Seconds that parts may still take when the program is over."""


class Saving:
    """On one rank, in a thread of its own."""

    def __init__(
        self, beginning: Path, step: int, rank: int, size: int, state: dict[str, Any], keep: int
    ) -> None:
        self._beginning, self._step, self._keep = beginning, step, keep
        self._rank, self._size, self._state = rank, size, state
        self._given_up = threading.Event()
        self._writing = _Job(self._write, "mpi4dl checkpoint, writing")
        self._completing = (
            _Job(self._complete, "mpi4dl checkpoint, completing") if not rank else None
        )

    def written(self) -> str:
        """Wait for this rank's part. What went wrong; nothing if all is well."""
        return self._writing.result()

    def completed(self) -> str:
        """Wait until the checkpoint is there; likewise. Only the first rank knows."""
        return self._completing.result() if self._completing is not None else ""

    def give_up(self) -> None:
        self._given_up.set()

    def _write(self) -> None:
        name = f"part-{self._rank:05}.json"
        write_alone(self._state, SafetensorsWriter(self._beginning, self._rank, name))
        self._state = {}

    def _complete(self) -> None:
        parts = [self._beginning / f"part-{rank:05}.json" for rank in range(self._size)]
        over = None
        while not all(part.exists() for part in parts):
            if self._given_up.wait(_LOOK):
                return
            if not threading.main_thread().is_alive():
                over = over or time.monotonic()
                if time.monotonic() > over + _AFTER_THE_END:
                    return
        index = Index.merged(Index.from_json(part.read_text("utf-8")) for part in parts)
        write_text(self._beginning / INDEX, index.to_json())
        for part in parts:
            part.unlink()
        complete_it(self._beginning, self._step, self._keep)


class _Job:
    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work, self._problem = work, ""
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._problem = str(error) or repr(error)

    def result(self) -> str:
        self._thread.join()
        return self._problem
