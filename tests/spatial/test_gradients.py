"""Starting backward, and hooks on gradients: what they see of tiles."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from mpi4dl import Tile, shard
from support.exactness import assert_exact, assert_refused, rand
from support.ranks import run_ranks


def test_only_what_is_globally_one_number_starts_backward_by_itself():
    def two_numbers(comm):
        # One number on each rank, and yet not one.
        tile = shard(rand(1, 1, 2, 1), grid=(2, 1)).requires_grad_()
        for start in ((tile * 2).backward, lambda: torch.autograd.grad(tile * 2, tile)):
            with pytest.raises(RuntimeError, match="scalar outputs"):
                start()

    def one_number(comm):
        # On rank 1 there is none of it.
        tile = shard(rand(1, 1, 1, 1), grid=(2, 1)).requires_grad_()
        (tile * 2).backward()
        assert tile.grad.full_tensor().item() == 2
        return True

    run_ranks(2, two_numbers)
    assert run_ranks(2, one_number) == [True, True]


class Hooked(nn.Module):
    """Two convolutions, of which the second has hooks."""

    def __init__(self, hook=None, before=None):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        if hook is not None:
            self.second.register_full_backward_hook(hook)
        if before is not None:
            self.second.register_full_backward_pre_hook(before)

    def forward(self, x):
        return self.second(self.first(x).relu()).relu()


def centred(gradients):
    return tuple(g - g.mean((2, 3), keepdim=True) for g in gradients)


@pytest.mark.parametrize("grid", [(2, 2), (5, 1)])
def test_hooks_of_modules_see_the_gradients_of_the_whole_image(grid):
    x = rand(2, 3, 8, 6)
    assert_exact(Hooked(lambda module, inputs, outputs: None), x, grid=grid)
    assert_exact(Hooked(lambda module, inputs, outputs: centred(inputs)), x, grid=grid)
    assert_exact(Hooked(None, lambda module, outputs: centred(outputs)), x, grid=grid)

    def by_the_output(module, inputs, outputs):
        assert inputs[0].shape == (2, 4, 8, 6)
        assert outputs[0].shape == (2, 4, 6, 4)
        return (inputs[0] * outputs[0].sign().mean(),)

    both = Hooked(by_the_output, lambda module, outputs: centred(outputs))
    assert_exact(both, x, grid=grid)


def test_hooks_of_a_module_that_makes_a_plain_tensor_of_a_tile():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 2)
            self.pool.register_full_backward_hook(lambda m, inputs, outputs: centred(inputs))
            self.last.register_full_backward_hook(lambda m, inputs, outputs: (2 * inputs[0],))

        def forward(self, x):
            return self.last(self.pool(x * x).flatten(1))

    assert_exact(Head(), rand(2, 3, 8, 6))


def test_hooks_of_modules_get_tiles():
    def program(comm):
        got = []
        net = Hooked(lambda module, inputs, outputs: got.extend((*inputs, *outputs))).double()
        net(shard(rand(2, 3, 8, 6), grid=(2, 2)).requires_grad_()).sum().backward()
        return got

    for got in run_ranks(4, program):  # under torchrun, of this rank alone
        assert [type(gradient) for gradient in got] == [Tile, Tile]


def test_a_tile_that_a_vmapped_function_closes_over_is_refused():
    assert_refused(
        lambda x: torch.vmap(lambda s: x * s)(torch.ones(3)), rand(1, 1, 4, 4), match=r"torch\.vmap"
    )


@pytest.mark.parametrize("grid", [(2, 2), (5, 3)], ids=str)
def test_hooks_of_tensors_see_the_gradients_of_the_whole_image(grid):
    def hooked(x):
        y = x * 2
        y.register_hook(lambda g: g * g.shape[-1] + g.mean((2, 3), keepdim=True))
        return y.square()

    assert_exact(hooked, rand(2, 4, 8, 6), grid=grid)


@pytest.mark.parametrize("kernel", [1, 3])
def test_gradients_are_not_differentiated_again(kernel):
    """They are those of P losses, so a gradient penalty would be P² times what it should be."""
    weight = rand(4, 4, kernel, kernel)

    def program(comm):
        x = mpi4dl.shard(rand(2, 4, 8, 6), (2, 2)).requires_grad_()
        loss = F.conv2d(x, weight).square().mean()
        with pytest.raises(mpi4dl.UnsupportedOperator, match="create_graph"):
            torch.autograd.grad(loss, x, create_graph=True)

    run_ranks(4, program)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4),
        nn.LayerNorm([4, 8, 6]),
        nn.MaxPool2d(3, 1, 1),
        nn.AvgPool2d(3, 1, 1),
        nn.AdaptiveMaxPool2d(1),
    ],
    ids=str,
)
def test_no_layer_drops_a_second_derivative_in_silence(layer):
    def program(comm):
        x = mpi4dl.shard(rand(2, 4, 8, 6), (2, 2)).requires_grad_()
        y = copy.deepcopy(layer).double()(x)
        with pytest.raises(mpi4dl.UnsupportedOperator, match="create_graph"):
            torch.autograd.grad(y, x, torch.ones(y.shape).double(), create_graph=True)

    run_ranks(4, program)
