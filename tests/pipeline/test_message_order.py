"""No tags: on every pair of ranks the messages stand in one order, at both ends."""

from __future__ import annotations

import pytest
import torch

import mpi4dl
from mpi4dl import Plan
from mpi4dl.schedule import SCHEDULES
from support import networks
from support.ordered import OutOfOrder, run_ordered
from support.ranks import UNDER_TORCHRUN
from support.training import Training, assert_trains_exactly, batches

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="these ranks are threads")

PLANS = {
    "pipeline": {"split_size": 4, "parts": 4},
    "uneven tiles": {"split_size": 4, "num_spatial_parts": (2, 4), "parts": 3},
    "tiles and shared batches": {"split_size": 4, "num_spatial_parts": 2, "local_dp": 2},
    "replicas": {"split_size": 4, "parts": 2, "replicas": 2, "checkpoint_activations": True},
    "all on tiles": {"split_size": 2, "num_spatial_parts": (2, 2), "parts": 3, "halo_d2": True},
}


def combinations():
    for schedule, recipe in SCHEDULES.items():
        for name, settings in PLANS.items():
            for times in (2, 3) if recipe.bidirectional else (1,):
                try:
                    plan = Plan(**settings, schedule=schedule, times=times)
                except mpi4dl.PlanError:
                    continue
                yield pytest.param(plan, id=f"{schedule}, {name}, {times}")


@pytest.mark.parametrize("plan", list(combinations()))
def test_order_is_the_protocol(plan):
    torch.manual_seed(1)
    samples = plan.micro_batches + 1
    training = Training(networks.branches().double(), batches(samples, (10, 9), steps=2))
    sent = []

    def run(ranks, program):
        results, log = run_ordered(ranks, program)
        sent.append(log.messages)
        return results

    assert_trains_exactly(training, plan, f"in order, {plan!r}", run)
    assert sent[0] > 0


@pytest.mark.parametrize("schedule", ["gpipe", "zb-v", "chimera"])
def test_evaluation_in_order(schedule):
    plan = Plan(split_size=4, parts=3, schedule=schedule, times=2 if schedule == "chimera" else 1)
    model = networks.plain().double()
    images = batches(7, (10, 9), steps=1)[0][0]

    def program(comm):
        return mpi4dl.Trainer(model, plan).predict(images)

    outputs, _ = run_ordered(plan.world_size, program)
    expected = model.eval()(images)
    for output in outputs:
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


# ── the communicator itself ──────────────────────────────────────────────────────────────────────


def messages(*order):
    """Rank 0 sends what is named first, rank 1 receives in the order of the second."""

    def program(comm):
        size = {"a": 1, "b": 2}
        pending = []
        for name in order[comm.rank]:
            tensor = torch.ones(size[name])
            message = [(1 - comm.rank, tensor)]
            pending.append(comm.start(message, []) if comm.rank == 0 else comm.start([], message))
        for one in pending:
            one.wait()

    return program


def test_messages_in_order_pass():
    _, log = run_ordered(2, messages("abb", "abb"))
    assert log.messages == 6


def test_messages_out_of_order_are_noticed():
    with pytest.raises(OutOfOrder, match="operation 1 of the ranks"):
        run_ordered(2, messages("ab", "ba"))


def test_two_that_both_send_first_are_noticed():
    def program(comm):
        peer = 1 - comm.rank
        comm.start([(peer, torch.ones(2))], [])
        comm.start([], [(peer, torch.empty(2))]).wait()

    with pytest.raises(OutOfOrder, match="operation 1 of the ranks"):
        run_ordered(2, program)


def test_a_ring_that_sends_before_it_receives_is_a_deadlock(monkeypatch):
    """Though the order of each pair is right: nobody's queue gets beyond its first."""
    monkeypatch.setattr("support.ordered._PATIENCE", 0.2)

    def program(comm):
        after, before = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        comm.start([(after, torch.ones(2))], [])
        comm.start([], [(before, torch.empty(2))]).wait()

    with pytest.raises(OutOfOrder, match="deadlock"):
        run_ordered(3, program)


def test_what_nobody_receives_is_noticed():
    def program(comm):
        if comm.rank == 0:
            comm.start([(1, torch.ones(2))], [])

    with pytest.raises(AssertionError, match=r"never received: .*0→1"):
        run_ordered(2, program)
