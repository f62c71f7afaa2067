"""What rank 0 shows while steps go by: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from typing import Any, Protocol

EVERY = 5.0
"""Seconds from one plain line to the next."""


class Progress(Protocol):
    def step(self, number: int, facts: str) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


class Lines:
    """`every` 0: all steps have their line."""

    def __init__(self, total: int, every: float = EVERY) -> None:
        self._total, self._every = total, every
        self._last = time.monotonic()

    def step(self, number: int, facts: str) -> None:
        now = time.monotonic()
        if now - self._last >= self._every or number in (1, self._total):
            self._last = now
            self.say(f"step {number:>{len(str(self._total))}} of {self._total}  {facts}")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def close(self) -> None:
        return None


class Bar:
    def __init__(self, total: int, done: int = 0) -> None:
        tqdm: Any = importlib.import_module("tqdm")
        self._bar = tqdm.tqdm(total=total, initial=done, unit="step", dynamic_ncols=True)

    def step(self, number: int, facts: str) -> None:
        self._bar.set_postfix_str(facts, refresh=False)
        self._bar.update()

    def say(self, line: str) -> None:
        self._bar.write(line)

    def close(self) -> None:
        self._bar.close()


class Silent:
    def step(self, number: int, facts: str) -> None:
        return None

    def say(self, line: str) -> None:
        return None

    def close(self) -> None:
        return None


def progress(rank: int, total: int, verbose: bool, done: int = 0) -> Progress:
    if rank:
        return Silent()
    if verbose:
        return Lines(total, every=0)
    if sys.stderr.isatty() and importlib.util.find_spec("tqdm"):
        return Bar(total, done)
    return Lines(total)
