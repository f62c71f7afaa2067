"""MPI requests under way, and what is left to do when they are complete."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import LaunchError
from .library import mpi
from .world import world

_BUSY = 0.01  # seconds of looking without a pause, but letting others in
_CROWDED = 0.0005  # where ranks share cores, and whoever looks keeps another from answering
_PAUSES = (2e-5, 1e-3)  # the shortest and the longest


class Task:
    """One operation. Whoever looks advances it: the caller in `wait`, or the progress thread."""

    __slots__ = (
        "_finish", "_keep", "_lock", "_next", "_requests", "_started", "_statuses", "_tests",
        "awaited", "done", "error", "listeners", "peers", "timeout", "watched", "what",
    )  # fmt: skip

    def __init__(
        self,
        what: Callable[[], str],
        requests: list[Any],
        peers: Sequence[int],
        timeout: float,
        finish: Callable[[list[Any]], None] | None = None,
        keep: object = None,
    ) -> None:
        """`peers` are ranks of the world. `finish` is given MPI's statuses; `keep` lives so long.

        `what` names the operation where it fails.
        """
        self.what, self.peers, self.timeout = what, peers, timeout
        self._requests, self._finish, self._keep = requests, finish, keep
        self._statuses = [mpi().Status() for _ in requests]
        self._tests = [(r.Test, s) for r, s in zip(requests, self._statuses, strict=True)]
        self._next = 0  # the first that is not over
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self.done = False
        self.awaited = False  # by a caller, who looks more often than anybody else could
        self.watched = False  # by the progress thread
        self.error: BaseException | None = None
        self.listeners: list[Callable[[], None]] = []

    def poll(self) -> bool:
        """Whether it is over, well or badly. Never waits."""
        if self.done:
            return True
        if not self._lock.acquire(False):
            return False  # another thread looks
        try:
            if not self.done and self._complete():
                if self._finish is not None:
                    self._finish(self._statuses)
                self._over()
        except BaseException as error:
            self._over(self._named(error))
        finally:
            self._lock.release()
        return self.done

    def _complete(self) -> bool:
        """Each request is looked at until it is over, and then no more: a look is cheap so."""
        for place in range(self._next, len(self._tests)):
            test, status = self._tests[place]
            if not test(status):
                self._next = place
                return False
        return True

    def _named(self, error: BaseException) -> BaseException:
        if not isinstance(error, mpi().Exception):
            return error
        world().give_up()
        named = LaunchError(f"{self.what()} failed on rank {world().rank}: {error}")
        named.__cause__ = error
        return named

    def _over(self, error: BaseException | None = None) -> None:
        self.error = error
        if error is None:  # otherwise MPI may still write to what is kept
            self._let_go()
        self.done = True
        while self.listeners:
            self.listeners.pop()()

    def _let_go(self) -> None:
        self._requests, self._tests, self._finish, self._keep = [], [], None, None

    def when_over(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if not self.done:
                self.listeners.append(listener)
                return
        listener()

    def wait(self, timeout: float | None = None) -> None:
        """Until it is over; its error is raised here, as is a peer's end, or too long a wait."""
        self.awaited = True
        if not self.poll():
            self._wait(timeout or self.timeout)
        if self.error is not None:
            raise self.error

    def _wait(self, timeout: float) -> None:
        """Busily at first, since most waits are short; then with pauses, in proportion.

        Others are let in after every look: the rank that is waited for may have been put on this
        very core, however many there are.
        """
        started = looked = time.monotonic()
        busy = started + (_CROWDED if world().crowded else _BUSY)
        while time.monotonic() < busy:
            if self.poll():
                return
            os.sched_yield()
        while not self.poll():
            now = time.monotonic()
            time.sleep(min(max((now - started) / 32, _PAUSES[0]), _PAUSES[1]))
            if now - looked > 1.0 or now - started > timeout:
                looked = now
                self._check(now - started, timeout)

    def check(self) -> None:
        """For what only listeners wait for: they hear of a peer's end, or of too long a wait."""
        try:
            self._check(time.monotonic() - self._started, self.timeout)
        except LaunchError as error:
            with self._lock:
                self._over(error)

    def _check(self, waited: float, timeout: float) -> None:
        """Whether there is still something to wait for."""
        ended = world().ended(self.peers)
        if self.poll():  # it had sent everything before it ended
            return
        if ended:
            names = "rank " + ", rank ".join(map(str, ended))
            self._hopeless(f"{names} has ended while rank {world().rank} waited: {self.what()}")
        if waited > timeout:
            self._hopeless(
                f"rank {world().rank} waited {timeout:g} seconds: {self.what()}. Ranks that do not "
                "run the same program wait for each other; if the work takes so long, set a "
                "longer timeout where the process group is made"
            )

    def _hopeless(self, message: str) -> None:
        world().give_up()
        raise LaunchError(message)
