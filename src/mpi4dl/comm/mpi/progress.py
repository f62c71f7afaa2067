"""The thread that advances operations while nobody waits for them.

MPI moves large messages, and computes sums, only inside its own calls. A thread that sat in one
would occupy a core; this one looks now and then. Each look takes Python's lock from the thread that
trains, which on a busy machine may cost it milliseconds. So where operations are waited for as soon
as they have begun, the looks become rare, and where one is found alone, frequent.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from functools import lru_cache

from .task import Task

_FUTURE = 2e-5  # seconds between looks where a future is to be completed
_UNDER_WAY = 2e-4  # where something is under way that nobody waits for
_RARELY = 0.1  # where all is waited for: each pause is twice the last, up to this
_SLEEPS = 10  # such pauses without a new operation, until it sleeps
_DOUBT = 1.0  # between looks at whether the others still run


class Progress:
    """Made by `progress`, one for each process."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._checked = time.monotonic()
        self._wake = threading.Event()
        self._asleep = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="mpi4dl progress", daemon=True)
        self._thread.start()

    def add(self, task: Task, urgent: bool = False) -> None:
        """To be found within a tenth of a second; at once if it is `urgent`."""
        if not task.watched:
            task.watched = True
            self._tasks.append(task)
        if urgent or self._asleep:
            self._wake.set()

    def hurry(self) -> None:
        """Somebody wants to be told when an operation is over, and will not wait for it."""
        self._wake.set()

    def stop(self) -> None:
        """Before MPI ends."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        pause, idle = _UNDER_WAY, 0
        while not self._stopped:
            idle = 0 if self._tasks else idle + 1
            found = self._look()
            pause = found or min(2 * pause, _RARELY)
            if found == _FUTURE:
                time.sleep(_FUTURE)
                continue
            self._asleep = idle > _SLEEPS
            if not (self._asleep and self._tasks):
                self._wake.wait(None if self._asleep else pause)
            self._wake.clear()
            self._asleep = False

    def _look(self) -> float | None:
        """At every task once. How long to pause afterwards, if anything is left alone."""
        pause = None
        now = time.monotonic()
        doubtful = now - self._checked > _DOUBT
        if doubtful:
            self._checked = now
        for _ in range(len(self._tasks)):
            task = self._tasks.popleft()
            task.watched = False  # before it is looked at: it may be started again meanwhile
            if task.awaited or task.poll():
                continue
            task.watched = True
            self._tasks.append(task)
            if doubtful and task.listeners:
                task.check()
            pause = min(pause or _UNDER_WAY, _FUTURE if task.listeners else _UNDER_WAY)
        return pause


@lru_cache(maxsize=1)
def progress() -> Progress:
    made = Progress()
    atexit.register(made.stop)
    return made
