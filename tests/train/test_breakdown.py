"""Where the time of a step went: all of it, and each second once."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch

from mpi4dl.comm.communicator import SERIAL
from mpi4dl.schedule import Action, Span
from mpi4dl.train.breakdown import Breakdown, broken_down, mean
from mpi4dl.train.timed import Call, Log, TimedCommunicator
from support.ranks import run_ranks


def span(text: str, start: float, stop: float) -> Span:
    return Span(Action.parse(text), start, stop)


SPANS = [span("0F0", 1, 5), span("0SF0", 5, 6), span("0B0", 10, 16), span("0R", 16, 17)]
CALLS = [
    Call("tiles", 2, 3),  # a halo in forward
    Call("", 5.25, 5.5),  # counts as sending already
    Call("", 7, 9.5),  # waiting for the next stage
    Call("tiles", 11, 11.5),
    Call("gradients", 12, 12.25),  # a bucket leaves during backward
    Call("gradients", 16.5, 17),
    Call("gradients", 18, 19),
    Call("", 19, 19.5),  # the loss, added up over all ranks
]


def test_every_second_is_counted_once():
    found = broken_down(20, SPANS, CALLS)
    assert found == Breakdown(
        compute=10 - 1.75, halo=1.5, transfer=1, gradients=0.25 + 1 + 1, waiting=3, other=4
    )
    assert sum(astuple(found)) == 20


def test_a_step_without_messages_is_computed():
    assert broken_down(5, [span("0F0", 0, 2), span("0B0", 2, 5)], []).compute == 5


def test_the_mean_of_steps():
    halves = [Breakdown(1, 2, 3, 4, 5, 6), Breakdown(3, 2, 1, 0, 1, 2)]
    assert mean(halves) == Breakdown(2, 2, 2, 2, 3, 4)


def test_a_timed_communicator_does_what_the_other_does():
    def program(comm):
        log = Log()
        timed = TimedCommunicator(comm, log)
        pair = timed.subgroup([0, 1], "tiles")
        assert timed.subgroup([comm.rank], "alone").size == 1 or comm.size == 1
        value = torch.tensor([float(comm.rank)])
        timed.all_reduce(value)
        begun = timed.start_all_reduce(added := torch.ones(1))
        begun.wait()
        gathered = timed.all_gather(torch.tensor([comm.rank])).flatten().tolist()
        other, theirs = 1 - comm.rank, torch.empty(1)
        pair.start([(other, value + comm.rank)], [(other, theirs)]).wait()
        assert pair is timed.subgroup([0, 1], "tiles")
        return value.item(), added.item(), gathered, theirs.item(), [c.use for c in log.calls]

    first, second = run_ranks(2, program)
    uses = [""] * 4 + ["tiles"] * 2
    assert first == (1, 2, [0, 1], 2, uses)
    assert second == (1, 2, [0, 1], 1, uses)


def test_a_single_rank_is_not_timed():
    timed = TimedCommunicator(SERIAL, Log())
    assert timed.subgroup([0]) is SERIAL


def test_calls_are_in_the_order_of_time():
    log = Log()
    with log.noting("a"):
        pass
    with pytest.raises(ZeroDivisionError), log.noting("b"):
        raise ZeroDivisionError
    assert [call.use for call in log.calls] == ["a", "b"]
    assert log.calls[0].stop <= log.calls[1].start
