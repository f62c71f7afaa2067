"""torch.compile between halo exchanges: pointwise blocks run compiled on the ranks' own parts.

The backend is `aot_eager`: it traces and differentiates as `inductor` does, and needs no compiler.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

import mpi4dl
from support.exactness import assert_exact, rand
from support.ranks import UNDER_TORCHRUN, every_rank_raises


class Compiled(nn.Module):
    """A module that treats every pixel by itself, compiled."""

    def __init__(self, module: nn.Module, backend: str) -> None:
        super().__init__()
        self.module, self.backend = module, backend

    def forward(self, x):
        run = torch.compile(self.module, backend=self.backend)
        if not isinstance(x, mpi4dl.Tile):
            return run(x)
        # Not a view of the tile, which Dynamo would look at.
        local = x.to_local().clone()
        return mpi4dl.wrap(run(local), x.placement)


def net(backend: str) -> nn.Module:
    pointwise = nn.Sequential(nn.Conv2d(4, 8, 1), nn.SiLU(), nn.BatchNorm2d(8).eval(), nn.Tanh())
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), Compiled(pointwise, backend), nn.Conv2d(8, 2, 3, padding=1)
    )


@pytest.fixture(autouse=True)
def forgotten():
    """What is compiled for one test is not kept for the next."""
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, while it compiles
@pytest.mark.parametrize("grid", [(2, 1), (2, 2)])
def test_a_compiled_block_between_two_halos(grid):
    assert_exact(net("aot_eager"), rand(2, 3, 12, 14), grid=grid)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.skipif(UNDER_TORCHRUN, reason="compiling takes long, and once is enough")
def test_the_same_with_inductor():
    assert_exact(net("inductor"), rand(1, 3, 12, 14), grid=(2, 1))


@pytest.mark.filterwarnings("ignore")
def test_a_tile_that_enters_a_compiled_module_is_an_error():
    def program(comm):
        tile = mpi4dl.shard(rand(1, 3, 8, 8), grid=(2, 1))
        return torch.compile(nn.ReLU(), backend="aot_eager")(tile)

    every_rank_raises(2, program, Exception, "there is no rule for this operator on tiles")
