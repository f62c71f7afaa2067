"""Elementwise operators, broadcasting, and operands that lie differently."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from support.exactness import assert_exact, assert_refused, on_tiles, rand

ACTIVATIONS = (
    "relu relu6 elu selu celu gelu silu mish sigmoid logsigmoid hardsigmoid hardswish hardtanh "
    "hardshrink leaky_relu softplus softshrink softsign tanh tanhshrink"
).split()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    assert_exact(getattr(F, name), rand(2, 3, 7, 5), grid=(2, 2))


@pytest.mark.parametrize(
    "module",
    [
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.1, inplace=True),
        nn.SiLU(inplace=True),
        nn.Hardswish(inplace=True),
        nn.PReLU(),
        nn.PReLU(3),
        nn.GLU(1),
        nn.Threshold(0.1, 20),
        nn.Softmax2d(),
        nn.Identity(),
        nn.Dropout(0.0),
        nn.Dropout(0.5).eval(),
    ],
    ids=str,
)
def test_activation_modules(module):
    channels = 4 if isinstance(module, nn.GLU) else 3
    assert_exact(nn.Sequential(nn.Conv2d(channels, channels, 1), module), rand(2, channels, 7, 5))


def test_arithmetic():
    def every(x, y):
        z = x + y - 2 * x / (y.abs() + 1) + 1 - x**2 + 2.0**y - (-x)
        z += x
        z *= 0.5
        z = z.clamp(-3, 3).add(x, alpha=2).addcmul(x, y, value=0.1).lerp(y, 0.3)
        return [
            z,
            torch.where(x > y, x, y),
            torch.maximum(x, y),
            x.masked_fill(y > 0, 0.25),
            torch.exp(x).sqrt().log1p(),
            x.pow(3).sub(y).mul(y).div(3),
            x.detach() // 0.3,
            (x > 0) & (y > 0) | ~(x > 1),
            1 / (x + 10),
            torch.atan2(x, y),
            abs(x),
            x.double() * 2,
            x.detach().float(),
            x.type_as(y),
        ]

    assert_exact(every, rand(2, 3, 7, 5), rand(2, 3, 7, 5, seed=1), grid=(2, 3))


def test_plain_operands_are_narrowed_to_the_tile():
    def every(x, position, channel, row, mask):
        return (
            x + position,
            position - x,
            x * channel,
            row * x,
            torch.where(mask > 0, x, 0.0),
            x**row,
        )

    assert_exact(
        every,
        rand(2, 3, 7, 5).abs() + 1,
        rand(1, 3, 7, 5, seed=1),
        rand(3, 1, 1, seed=2),
        rand(5, seed=3),
        rand(7, 1, seed=4),
        grid=(2, 2),
        plain=(1, 2, 3, 4),
    )


def test_squeeze_and_excite():
    class Excite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

        def forward(self, x):
            return x * self.up(self.down(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()

    for grid in [(2, 2), (1, 3), (4, 2)]:
        assert_exact(Excite(), rand(2, 4, 7, 5), grid=grid)


def test_tiles_of_different_layouts_meet():
    """After a stride and its inverse the cuts lie elsewhere; the operand is moved, exactly."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(2, 2, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1)

        def forward(self, x):
            y = self.up(self.down(x))
            z = y * 2
            z += x
            return x + y, y + x, z

    for grid in [(2, 2), (3, 1), (5, 2)]:
        assert_exact(Skip(), rand(1, 2, 13, 15), grid=grid)


def test_tiles_that_broadcast():
    def every(x, row, channel):
        return x + row, row * x, x - channel

    x, row, channel = rand(2, 3, 7, 5), rand(2, 3, 1, 5, seed=1), rand(3, 7, 5, seed=2)
    assert_exact(every, x, row, channel, grid=(2, 2))


def test_cut_batches_and_volumes():
    assert_exact(lambda x, y: x * y + 1, rand(5, 3, 4), rand(5, 3, 4, seed=1), grid=(3,), dims=(0,))
    assert_exact(torch.sigmoid, rand(1, 2, 4, 5, 6), grid=(2, 2, 1))


def test_shapes_that_do_not_broadcast_are_an_error_on_every_rank():
    for shape in [(2, 3, 7, 4), (2, 3, 4, 5), (4, 3)]:
        assert_refused(
            lambda x, y: x + y,
            rand(2, 3, 7, 5),
            rand(*shape),
            plain=(1,),
            error=mpi4dl.LayoutMismatch,
            match="beside a tile",
            alike=False,
        )
    assert_refused(lambda x, y: x + y, rand(2, 3, 7, 5), rand(2, 3, 8, 5), error=RuntimeError)


def test_a_plain_tensor_of_the_local_shape_is_not_taken_for_the_tile():
    """The part of a rank looks like a small image; adding it would be silently wrong."""

    def program(x):
        return x + torch.ones(x.to_local().shape, dtype=torch.float64)

    assert_refused(program, rand(1, 2, 8, 8), error=(RuntimeError, ValueError))


def test_positions_where_a_condition_holds_are_refused():
    assert_refused(lambda x: torch.where(x > 0), rand(1, 2, 8, 8), match="finds positions")


def test_tiles_of_different_layouts_have_the_same_size_on_every_rank():
    def program(x):
        other = x.redistribute(mpi4dl.Layout.grid((7, 5), (4, 1)))
        return torch.is_same_size(x, other), x.is_same_size(other), x.is_same_size(x[:, :, 1:])

    assert on_tiles(program, [rand(1, 2, 7, 5)], (2, 2)).outputs == [True, True, False]


@pytest.mark.parametrize("dims", [(0, 2), (-2, -1), (0,)])
def test_what_is_written_to_does_not_grow(dims):
    """One image or row plus several: in place there is no room for them."""
    grid = (2, 1)[: len(dims)]

    def one_and_all(x):
        first = x.sum(dims[0], keepdim=True).expand(*x.shape)[:1, :, :1] * 1
        return first.add_(x)

    where = {"grid": grid, "dims": dims, "alike": 0 in dims}
    assert_refused(one_and_all, rand(2, 3, 7, 5), error=RuntimeError, **where)
    one = rand(1, 3, 7, 5), rand(2, 3, 7, 5)

    def program(a, b):
        return (a * 1).add_(b)

    assert_refused(program, *one, error=RuntimeError, **where)
