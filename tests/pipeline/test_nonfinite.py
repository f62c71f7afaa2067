"""A loss that is no number: nothing is changed, on any rank, and the layer is named."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpi4dl import Plan, Trainer
from mpi4dl.errors import NonFiniteError, PlanError
from support.ranks import every_rank_raises, run_ranks
from support.training import batches

PLANS = [
    Plan(parts=2),
    Plan(split_size=2, parts=2),
    Plan(split_size=2, num_spatial_parts=(4,), parts=2),
    Plan(split_size=2, parts=2, schedule="gems", times=1),
]


class Logarithm(nn.Module):
    """Well for positive numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Root(torch.autograd.Function):
    """Finite, with a gradient that is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / 0.0


torch.manual_seed(2)
NETWORK = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1),
    nn.BatchNorm2d(4),
    nn.Softplus(),
    Logarithm(),
    nn.Conv2d(4, 6, 3, padding=1, stride=2),
    nn.BatchNorm2d(6),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(6, 10),
).double()
BATCHES = batches(4, (12, 14), steps=6)
BAD = (BATCHES[0][0].clone(), BATCHES[0][1])
BAD[0][2, 1, 3, 4] = float("nan")
adam = partial(torch.optim.Adam, lr=1e-2)


def trainer_of(plan: Plan, model: nn.Module = NETWORK, **options: Any) -> Trainer:
    return Trainer(copy.deepcopy(model), plan, F.cross_entropy, adam, **options)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_batch_that_is_skipped_leaves_no_trace(plan):
    alone = trainer_of(Plan(parts=2))
    expected = [float(alone.step(*batch)) for batch in BATCHES]

    def program(comm):
        trainer = trainer_of(plan, nonfinite="skip", accumulate=1)
        losses = [float(trainer.step(*BATCHES[i])) for i in range(3)]
        before = trainer.state_dict()
        assert not trainer.step(*BAD).isfinite()
        named = trainer.last_nonfinite
        after = trainer.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        losses += [float(trainer.step(*BATCHES[i])) for i in range(3, 6)]
        assert trainer.last_nonfinite is None
        assert not trainer.stopping
        return named, losses

    for named, losses in run_ranks(plan.world_size, program):
        assert named.startswith("the input of 0 (Conv2d) (stage 0, micro-batch 1): 1 of ")
        for ours, theirs in zip(losses, expected, strict=True):
            assert abs(ours / theirs - 1) < 1e-11


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_layer_where_it_begins_is_named_by_an_error_on_all_ranks(plan):
    model = copy.deepcopy(NETWORK)
    model[2] = nn.ReLU()  # a logarithm of zero

    def program(comm):
        trainer_of(plan, model, nonfinite="raise").step(*BATCHES[0])

    match = r"step 0 is nan .*it began with the output of 3 \(Logarithm\) \(stage 0, micro-batch 0"
    every_rank_raises(plan.world_size, program, NonFiniteError, match)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_gradient_alone(plan):
    class Steep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Root.apply(x)

    model = nn.Sequential(*list(NETWORK)[:-1], Steep(), NETWORK[-1])

    def program(comm):
        trainer = trainer_of(plan, model, nonfinite="stop")
        before = trainer.state_dict()
        loss = trainer.step(*BATCHES[0])
        assert loss.isfinite()
        after = trainer.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert trainer.stopping
        return trainer.last_nonfinite

    named = run_ranks(plan.world_size, program)
    assert len(set(named)) == 1
    assert named[0].startswith("the gradient of 5.bias")


def test_a_parameter_that_was_no_number_before_is_named():
    model = copy.deepcopy(NETWORK)
    with torch.no_grad():
        model[4].weight[0, 0, 0, 0] = float("inf")
    trainer = trainer_of(Plan(parts=2), model, nonfinite="skip")
    trainer.step(*BATCHES[0])
    assert str(trainer.last_nonfinite).startswith("the parameter 4.weight itself")


def test_a_loss_function_that_divides_by_nothing():
    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels) / 0

    trainer = Trainer(
        copy.deepcopy(NETWORK), Plan(split_size=1, parts=2), loss, adam, nonfinite="skip"
    )
    trainer.step(*BATCHES[0])
    assert trainer.last_nonfinite == "the loss itself, micro-batch 0"


def test_batches_that_waited_with_it_for_an_update_are_gone():
    trainer = trainer_of(Plan(parts=2), nonfinite="skip", accumulate=2)
    before = trainer.state_dict()
    trainer.step(*BATCHES[0])
    trainer.step(*BAD)
    trainer.step(*BATCHES[1])
    parameters = trainer.named_parameters()
    assert all(torch.equal(before[name], p) for name, p in parameters.items()), "no update yet"
    trainer.step(*BATCHES[2])
    assert not all(torch.equal(before[name], p) for name, p in parameters.items())


def test_who_does_not_ask_gets_the_numbers():
    trainer = trainer_of(Plan(parts=2))
    assert not trainer.step(*BAD).isfinite()
    with pytest.raises(PlanError, match="'raise', 'skip', 'stop' or 'ignore'"):
        trainer_of(Plan(), nonfinite="never")


@pytest.mark.parametrize("who", range(3))
def test_one_rank_asks_to_stop_and_all_know_after_the_same_step(who):
    def program(comm):
        trainer = trainer_of(Plan(split_size=3, parts=2))
        trainer.step(*BATCHES[0])
        first = trainer.stopping
        if comm.rank == who:
            trainer.request_stop()
        trainer.step(*BATCHES[1])
        return first, trainer.stopping

    assert set(run_ranks(3, program)) == {(False, True)}
