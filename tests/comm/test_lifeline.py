"""Whose end of a connection closes has ended; who says goodbye has not failed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from mpi4dl.comm import lifeline
from mpi4dl.comm.lifeline import Lifeline, Lost
from mpi4dl.comm.rendezvous import _answered, _answering, hosted_store


class Heard:
    def __init__(self) -> None:
        self.what: list[Lost] = []

    def lost(self, lost: Lost) -> None:
        self.what.append(lost)


Ranks = tuple[dict[int, Lifeline], dict[int, socket.socket], dict[int, Heard]]


@pytest.fixture
def three() -> Iterator[Ranks]:
    """Three ranks of one process: their lifelines, their ends, and who hears of it."""
    theirs, ours = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    lines = {0: Lifeline(0, dict(enumerate(ours, 1)))}
    lines |= {rank: Lifeline(rank, {0: end}) for rank, end in enumerate(theirs, 1)}
    heard = {rank: Heard() for rank in lines}
    for rank, line in lines.items():
        line.listeners.add(heard[rank])
    yield lines, dict(enumerate(theirs, 1)), heard
    for line in lines.values():
        line.close()


def test_all_hear_of_a_rank_that_has_ended(three):
    lines, ends, heard = three
    ends[2].shutdown(socket.SHUT_RDWR)  # as the system does with what a killed process had open
    for rank in (0, 1):
        assert lines[rank].known.wait(10)
        assert lines[rank].lost == Lost(2)
    assert heard[0].what == heard[1].what == [Lost(2)]


def test_a_goodbye_is_no_alarm_and_the_next_loss_is(three):
    lines, ends, heard = three
    lines[1].close()
    assert not lines[0].known.wait(0.2)
    ends[2].shutdown(socket.SHUT_RDWR)
    assert lines[0].known.wait(10)
    assert heard[0].what == [Lost(2)]
    assert not heard[1].what


def test_what_ends_a_rank_is_passed_on(three, monkeypatch):
    lines, _, heard = three
    monkeypatch.setattr(lifeline.sys, "last_value", ValueError("odd\nnumbers"), raising=False)
    lines[2].close()
    assert lines[1].known.wait(10)
    assert heard[1].what == [Lost(2, "ValueError: odd numbers")]


def test_the_first_rank_is_missed_by_all(three):
    lines, _, heard = three
    lines[0]._let_go()
    for rank in (1, 2):
        assert lines[rank].known.wait(10)
        assert heard[rank].what == [Lost(0)]


def test_ranks_of_another_attempt_are_not_met():
    """The store still has what ranks that have ended once said."""
    store = hosted_store(3)
    store.set_timeout(timedelta(seconds=20))
    clients = [
        PrefixStore("x", TCPStore("127.0.0.1", store.port, 3, False, wait_for_workers=False))
        for _ in range(3)
    ]
    met = set()
    for attempt in range(2):
        clients[1].set("mpi4dl/hello/1", f"of one that has ended, {attempt}")
        prefixes: dict[int, str] = {}

        def meet(rank: int, prefixes: dict[int, str] = prefixes) -> None:
            client = clients[rank]
            prefixes[rank] = _answered(client, rank) if rank else _answering(client, 3, 20)

        threads = [threading.Thread(target=meet, args=(rank,)) for rank in (0, 2, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(prefixes.values())) == 1
        assert len(prefixes) == 3
        met.add(prefixes[0])
    assert len(met) == 2
