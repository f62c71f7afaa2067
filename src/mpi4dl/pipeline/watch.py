"""What a rank does when another one ends in the middle of the work: says it once, and stops."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..comm.lifeline import Lifeline, Lost, lifeline
from ..errors import LaunchError, Mpi4dlError, RankLost
from .setup import Setup

_UNTIL_KNOWN = 1.0
"""Seconds in which the reason for a failed exchange becomes known, if it is a lost rank."""
_PATIENCE = 5.0
"""Seconds in which a rank that waits notices by itself. Some transports never do."""
EXIT_CODE = 1


class Watch:
    """`doing` says what this rank is at: for the message."""

    def __init__(self, setup: Setup, doing: Callable[[], str]) -> None:
        self._mesh, self._rank = setup.plan.mesh, setup.world.rank
        self._doing = doing
        self._done = threading.Event()
        self._done.set()
        self._message, self._saying = "", threading.Lock()
        self._line: Lifeline | None = lifeline(setup.world, setup.device)
        if self._line is not None:
            self._line.listeners.add(self)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work that needs the other ranks. RankLost if one has ended."""
        line = self._line
        if line is None:
            yield
            return
        self._done.clear()
        try:
            if line.lost is not None:
                raise RankLost(self._said(line.lost))
            yield
        except (RuntimeError, OSError) as error:
            own = isinstance(error, Mpi4dlError) and not isinstance(error, LaunchError)
            if own or isinstance(error, RankLost) or not line.known.wait(_UNTIL_KNOWN):
                raise
            assert line.lost is not None
            raise RankLost(self._said(line.lost)) from error
        finally:
            self._done.set()

    def lost(self, lost: Lost) -> None:
        """In the thread of the lifeline."""
        if self._done.is_set():
            return
        self._said(lost)
        if not self._done.wait(_PATIENCE):
            os._exit(EXIT_CODE)

    def _said(self, lost: Lost) -> str:
        """What there is to say: one rank prints it, once."""
        with self._saying:
            if not self._message:
                why = f" ({lost.why})" if lost.why else ""
                self._message = (
                    f"rank {lost.rank} ({self._place(lost.rank)}) has ended{why} while rank "
                    f"{self._rank} ({self._place(self._rank)}) waited for {self._doing()}. All "
                    "ranks stop; start again from the last checkpoint"
                )
                if self._rank == (1 if lost.rank == 0 else 0):
                    print(f"mpi4dl: {self._message}", file=sys.stderr, flush=True)
        return self._message

    def _place(self, rank: int) -> str:
        if rank >= self._mesh.size:
            return "no stage"
        places = []
        for direction, stage in self._mesh.held(rank):
            ranks = self._mesh.ranks(self._mesh.replica(rank), direction, stage)
            tile = f", part {ranks.index(rank) + 1} of {len(ranks)}" if len(ranks) > 1 else ""
            backwards = " backwards" if direction else ""
            places.append(f"stage {stage}{backwards}{tile}")
        return "; ".join(places)
