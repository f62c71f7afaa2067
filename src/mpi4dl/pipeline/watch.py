"""What a rank does when another one ends in the middle of the work: says it once, and stops."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..comm.lifeline import Lifeline, Lost, lifeline
from ..errors import RankLost
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
        if line.lost is not None:
            raise RankLost(self._message(line.lost, "was about to begin: " + self._doing()))
        self._done.clear()
        try:
            yield
        except (RuntimeError, OSError) as error:
            if line.known.wait(_UNTIL_KNOWN):
                assert line.lost is not None
                raise RankLost(self._message(line.lost, "waited for " + self._doing())) from error
            raise
        finally:
            self._done.set()

    def lost(self, lost: Lost) -> None:
        """In the thread of the lifeline."""
        if self._done.is_set():
            return
        if self._rank == (1 if lost.rank == 0 else 0):
            message = self._message(lost, "waited for " + self._doing())
            print(f"mpi4dl: {message}", file=sys.stderr, flush=True)
        if not self._done.wait(_PATIENCE):
            os._exit(EXIT_CODE)

    def _message(self, lost: Lost, mine: str) -> str:
        why = f" ({lost.why})" if lost.why else ""
        return (
            f"rank {lost.rank} ({self._place(lost.rank)}) has ended{why} while rank {self._rank} "
            f"({self._place(self._rank)}) {mine}. All ranks stop; start again from the last "
            "checkpoint"
        )

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
