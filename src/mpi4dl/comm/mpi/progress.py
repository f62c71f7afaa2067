"""The thread that advances operations while nobody waits for them.

MPI moves large messages, and computes sums, only inside its own calls. A thread that sat in one
would occupy a core; this one looks now and then, while there is something to look for, and
otherwise sleeps until told. Telling a sleeping thread takes longer than a short message, so it
stays half awake for a moment after the last operation.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from functools import lru_cache

from .task import Task

_AWAITED = 2e-5  # seconds between looks where a future is to be completed
_UNDER_WAY = 2e-4  # where the caller will wait by itself
_NOTHING = 1e-3
_DOUBT = 1.0  # between looks at whether the others still run
_DROWSY = 100  # looks at nothing before it sleeps


class Progress:
    """Made by `progress`, one for each process."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._checked = time.monotonic()
        self._wake = threading.Event()
        self._asleep = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="mpi4dl progress", daemon=True)
        self._thread.start()

    def add(self, task: Task) -> None:
        self._tasks.append(task)
        if self._asleep:
            self._wake.set()

    def stop(self) -> None:
        """Before MPI ends."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        idle = 0
        while not self._stopped:
            pause = self._look()
            idle = idle + 1 if pause == _NOTHING else 0
            if idle <= _DROWSY:
                time.sleep(pause)
                continue
            self._asleep = True
            if not self._tasks and not self._stopped:
                self._wake.wait()
            self._wake.clear()
            self._asleep, idle = False, 0

    def _look(self) -> float:
        """At every task once. How long to pause afterwards."""
        pause = _NOTHING
        now = time.monotonic()
        doubtful = now - self._checked > _DOUBT
        if doubtful:
            self._checked = now
        for _ in range(len(self._tasks)):
            task = self._tasks.popleft()
            if task.awaited or task.poll():
                continue
            self._tasks.append(task)
            if doubtful and task.listeners:
                task.check()
            pause = min(pause, _AWAITED if task.listeners else _UNDER_WAY)
        return pause


@lru_cache(maxsize=1)
def progress() -> Progress:
    made = Progress()
    atexit.register(made.stop)
    return made
