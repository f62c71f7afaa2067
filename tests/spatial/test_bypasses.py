"""What would take a tile's part for the whole tensor refuses it, and serves other tensors."""

from __future__ import annotations

import pytest
import torch

import mpi4dl
from mpi4dl.spatial.registry import HANDLERS
from support.exactness import assert_exact, assert_refused, rand
from support.ranks import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def scripted(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * torch.sigmoid(x) * factor


CALLS = {
    "torch.jit": lambda x: torch.jit.script(scripted)(x, factor=3.0),
    "torch.vmap": lambda x: torch.vmap(lambda row: row.sum())(x),
    "torch.func.grad": lambda x: torch.func.grad(lambda x: x.square().sum())(x),
    "torch.func.vjp": lambda x: torch.func.vjp(torch.square, x)[0],
    "functionalize": lambda x: torch.func.functionalize(torch.square)(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_transformed_functions_refuse_tiles(name):
    def program(comm):
        with pytest.raises(mpi4dl.UnsupportedOperator, match="a tile's part for the whole"):
            CALLS[name](mpi4dl.shard(rand(2, 3, 6, 6), (2, 2)))

    run_ranks(4, program)


@pytest.mark.parametrize("name", CALLS)
def test_transformed_functions_serve_plain_tensors(name):
    assert CALLS[name](rand(2, 3)).shape in {(2, 3), (2,)}


def test_models_that_are_scripted_or_traced_refuse_tiles():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.ReLU()).double()
    compiled = [torch.jit.script(model), torch.jit.trace(model, rand(2, 3, 6, 6))]

    def program(comm):
        for module in compiled:
            with pytest.raises(mpi4dl.UnsupportedOperator):
                module(mpi4dl.shard(rand(2, 3, 6, 6), (2, 2)))

    run_ranks(4, program)


class Swish(torch.autograd.Function):
    """As memory-saving activations in other people's models are written."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


def test_custom_autograd_functions_are_refused_until_they_have_a_rule():
    assert_refused(Swish.apply, rand(1, 2, 8, 8), grid=(2, 1), match=r"Swish.*spatial_op\(Swish\)")

    @mpi4dl.spatial_op(Swish)
    def swish(func, x):
        return mpi4dl.wrap(func.apply(x.to_local()), x.placement)

    try:
        assert_exact(Swish.apply, rand(1, 2, 7, 9), grid=(2, 2))
    finally:
        del HANDLERS[Swish]
