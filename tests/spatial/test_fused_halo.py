"""Groups of layers with one wide exchange: the same results, and fewer messages."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpi4dl
from mpi4dl import FusedHalo
from support.exactness import Constant, assert_exact, rand
from support.ranks import UNDER_TORCHRUN, run_ranks


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1, in_place: bool = True) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(in_place)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.relu(self.norm1(self.one(x)))
        y = self.norm2(self.two(y))
        y += self.skip(x)
        return self.relu(y)


def net() -> nn.Sequential:
    return nn.Sequential(
        FusedHalo(nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.BatchNorm2d(4), nn.ReLU(True))),
        FusedHalo(nn.Sequential(Block(4, 4), Block(4, 4))),
        FusedHalo(Block(4, 6, 2)),
        nn.Conv2d(6, 2, 3, padding=1),
    )


GRIDS = [(2, 1), (1, 3), (2, 2), (3, 2)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("size", [(40, 44), (39, 45), (33, 31)])
def test_residual_networks(size, grid):
    assert_exact(net(), rand(2, 3, *size), grid=grid)
    assert_exact(net(), Constant(rand(2, 3, *size)), grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "group",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 5, padding=2)),
        nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(3, 1, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.SiLU()),
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 2, dilation=2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, 1, 1)),
        nn.Sequential(nn.ReLU(True), nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4).eval()),
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Conv2d(3, 4, 3, 1, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ],
    ids=str,
)
def test_groups_of_other_layers(group, grid):
    assert_exact(FusedHalo(group), rand(2, 3, 21, 26), grid=grid)


def test_squeeze_and_excite_inside_a_group():
    class Excite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate = nn.Conv2d(3, 3, 3, 1, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.conv(x)
            return self.conv(y * self.gate(F.adaptive_avg_pool2d(y, 1)).sigmoid())

    assert_exact(FusedHalo(Excite()), rand(2, 3, 21, 26), grid=(2, 2))


def test_empty_tiles_and_one_process():
    assert_exact(FusedHalo(Block(3, 3)), rand(2, 3, 3, 5), grid=(4, 2))
    assert_exact(FusedHalo(Block(3, 3)), rand(2, 3, 9, 9), grid=(1, 1))


def test_with_checkpointing_and_a_cut_batch():
    class Saved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    assert_exact(Saved(), rand(2, 3, 40, 44), grid=(2, 2))
    assert_exact(net(), rand(4, 3, 40, 44), grid=(2, 2), dims=(0, 2))


@pytest.mark.skipif(UNDER_TORCHRUN, reason="counts the messages of threads")
def test_the_number_of_messages_drops():
    layers = [nn.Conv2d(3, 3, 3, 1, 1) for _ in range(4)]

    def messages(module: nn.Module) -> int:
        module = module.double()

        def program(comm):
            tile = mpi4dl.shard(rand(1, 3, 32, 32), grid=(2, 1))
            module(tile).sum().backward()
            return comm.messages_sent

        return max(run_ranks(2, program))

    plain, fused = messages(nn.Sequential(*layers)), messages(FusedHalo(nn.Sequential(*layers)))
    # Two ranks, each sends one halo: for four layers forward, and for those but the first
    # backward, since the image wants no gradient. Fused: once, forward.
    assert plain == 2 * (4 + 3)
    assert fused == 2


def test_a_module_that_depends_on_values_is_refused():
    class Fickle(nn.Module):
        steps = 1

        def forward(self, x):
            for _ in range(self.steps):
                x = x * 2
            return x

    def program(comm):
        fickle = Fickle()
        fused = FusedHalo(fickle)
        tile = mpi4dl.shard(torch.ones(1, 1, 8, 8), grid=(2, 1))
        fused(tile)
        fickle.steps = 2
        with pytest.raises(RuntimeError, match="depend on values"):
            fused(tile)

    run_ranks(2, program)
