"""`sync_gradients` takes the mean over ranks, whatever they have, or says what is wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import mpi4dl
from mpi4dl.comm import gradients
from mpi4dl.comm.communicator import Serial
from support.exactness import rand
from support.ranks import every_rank_raises, run_ranks


def with_gradients(comm, *parameters):
    """Parameter i has the gradient rank + i."""
    model = nn.Module()
    for i, parameter in enumerate(parameters):
        p = nn.Parameter(parameter.clone())
        p.grad = torch.full_like(p, comm.rank + i)
        model.register_parameter(f"p{i}", p)
    return model


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gradients_become_their_mean(size):
    def program(comm):
        model = with_gradients(comm, rand(3, 4), rand(5), rand(2, 1, 3).mT)
        mpi4dl.sync_gradients(model)
        return [p.grad for p in model.parameters()]

    for rank_has in run_ranks(size, program):
        for i, gradient in enumerate(rank_has):
            assert torch.equal(gradient, torch.full_like(gradient, (size - 1) / 2 + i))


def test_a_parameter_that_some_ranks_did_not_use():
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)])

    def program(comm):
        branches = copy.deepcopy(model)
        branches[comm.rank == 2](torch.ones(1, 2)).sum().backward()
        mpi4dl.sync_gradients(branches)
        return [p.grad for p in branches.parameters()]

    for *used, weight, bias in run_ranks(4, program):
        assert [g.unique().item() for g in used] == [0.75, 0.75, 0.25, 0.25]
        assert weight is bias is None


@pytest.mark.parametrize("room", [1, 40, 2**20])
def test_mixed_dtypes_keep_their_own_and_their_order(monkeypatch, room):
    """Gradients travel in buckets of one dtype, however small these are."""
    monkeypatch.setattr(gradients, "_BUCKET_BYTES", room)
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float64]

    def program(comm):
        model = with_gradients(comm, *[rand(2, 3).to(dtype) for dtype in dtypes])
        mpi4dl.sync_gradients(model)
        return [p.grad for p in model.parameters()]

    for rank_has in run_ranks(4, program):
        assert [g.dtype for g in rank_has] == dtypes
        assert [g.unique().item() for g in rank_has] == [1.5, 2.5, 3.5, 4.5, 5.5]


def test_frozen_parameters_and_models_without_any_are_left_alone():
    def program(comm):
        model = with_gradients(comm, rand(2, 2), rand(2))
        model.p0.requires_grad_(False)
        mpi4dl.sync_gradients(model)
        mpi4dl.sync_gradients(nn.ReLU())
        assert (model.p0.grad == comm.rank).all()
        assert (model.p1.grad == 2).all()

    run_ranks(3, program)


def test_different_weights_are_refused_with_the_name_of_the_parameter():
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 2))

    def program(comm):
        mine = copy.deepcopy(model)
        if comm.rank == 2:
            nn.init.ones_(mine[2].weight)
            nn.init.ones_(mine[2].bias)
        mpi4dl.sync_gradients(mine)

    message = r"different values in 2 parameters, 2\.weight first\. Call mpi4dl\.init\(\) or torch"
    every_rank_raises(4, program, mpi4dl.LayoutMismatch, message)


def test_weights_that_are_not_numbers_everywhere_are_no_difference():
    def program(comm):
        model = with_gradients(comm, torch.full((2,), float("nan")))
        mpi4dl.sync_gradients(model)
        assert (model.p0.grad == 0.5).all()

    run_ranks(2, program)


def test_weights_are_compared_once():
    def program(comm):
        model = with_gradients(comm, rand(2))
        mpi4dl.sync_gradients(model)
        with torch.no_grad():
            model.p0 += comm.rank
        mpi4dl.sync_gradients(model)  # as it did the first time

    run_ranks(2, program)


def test_one_rank_has_nothing_to_do():
    model = nn.Linear(1, 1)
    mpi4dl.sync_gradients(model, Serial())
    assert model.weight.grad is None


def test_the_comparison_does_not_depend_on_the_number_of_threads():
    """A sum of floats does: its order, and so its last bits, follow from how it is split."""
    torch.manual_seed(0)
    values = torch.randn(1_000_003)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = gradients._digest(values)
        torch.set_num_threads(3)
        assert gradients._digest(values) == one
    finally:
        torch.set_num_threads(before)
    assert gradients._digest(values + 1e-6) != one
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64):
        assert gradients._digest(values.to(dtype)) == gradients._digest(values.to(dtype).clone())
