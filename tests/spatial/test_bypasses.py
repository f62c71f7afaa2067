"""What would take a tile's part for the whole tensor refuses it, and serves other tensors."""

from __future__ import annotations

import pytest
import torch

import mpi4dl
from support.exactness import rand
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
