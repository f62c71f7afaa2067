"""The convolution that overlaps with its halo equals the general path, its reference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mpi4dl.comm.communicator import Serial
from mpi4dl.geometry import Layout, SlidingWindow
from mpi4dl.spatial import additive_halo, convolution
from mpi4dl.spatial.placement import Placement
from support.exactness import Constant, assert_exact, compare, on_tiles, rand
from support.ranks import UNDER_TORCHRUN

ALIGNED = [
    ({"kernel_size": 3, "padding": 1}, (12, 16)),
    ({"kernel_size": 3, "padding": 1}, (13, 17)),
    ({"kernel_size": 7, "padding": 3, "stride": 2}, (24, 32)),
    ({"kernel_size": 3, "padding": 1, "stride": 2, "bias": False}, (24, 32)),
    ({"kernel_size": 3, "padding": 2, "dilation": 2}, (12, 18)),
    ({"kernel_size": 5, "padding": 2, "groups": 2}, (12, 18)),
    ({"kernel_size": (1, 7), "padding": (0, 3)}, (12, 18)),
    ({"kernel_size": (7, 1), "padding": (3, 0), "stride": (2, 1)}, (24, 18)),
    ({"kernel_size": 13, "padding": 6}, (12, 12)),
    ({"kernel_size": 4, "stride": 2, "padding": 1}, (24, 32)),
    ({"kernel_size": 3, "stride": 3, "padding": 1}, (18, 24)),
]


@pytest.fixture
def calls(monkeypatch):
    """How often the overlapping path was taken, by all ranks together."""
    taken: list[int] = []
    original = additive_halo.convolve

    def counted(*args):
        taken.append(1)
        return original(*args)

    monkeypatch.setattr(convolution, "convolve", counted)
    return taken


@pytest.fixture
def general_path(monkeypatch):
    """When called: no convolution overlaps from then on, whatever was decided before."""

    def use():
        monkeypatch.setattr(convolution, "_overlaps", lambda *args: False)
        convolution._call.cache_clear()

    yield use
    convolution._call.cache_clear()


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2), (3, 2)])
@pytest.mark.parametrize(("options", "size"), ALIGNED, ids=str)
def test_it_equals_one_process_and_the_general_path(options, size, grid, calls, general_path):
    net = nn.Conv2d(4, 6, **options).double()
    x = rand(2, 4, *size)
    assert_exact(net, x, grid=grid)
    assert_exact(net, Constant(x), grid=grid)
    overlapping = on_tiles(net, [x], grid)
    general_path()
    compare(overlapping, on_tiles(net, [x], grid), "the general path")
    ranks = grid[0] * grid[1]
    aligned = size[0] % (2 * grid[0]) == 0 and size[1] % (2 * grid[1]) == 0
    crosses = any(k > 1 and g > 1 for k, g in zip(net.kernel_size, grid, strict=True))
    if aligned and crosses:
        assert len(calls) == 3 * (1 if UNDER_TORCHRUN else ranks), (
            "these shapes are meant to overlap"
        )
    if not crosses:
        assert not calls


@pytest.mark.parametrize("size", [12, 13, 17, 18, 23, 24])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [2, 3])
def test_the_last_pixels_that_no_window_reads(kernel, stride, size):
    net = nn.Conv2d(1, 2, kernel, stride, 1)
    assert_exact(net, rand(1, 1, size, size), grid=(2, 2))
    assert_exact(net, rand(1, 1, size, size + 6), grid=(2, 3))


def test_volumes_and_lines(calls):
    assert_exact(nn.Conv3d(2, 3, 3, padding=1), rand(1, 2, 6, 8, 10), grid=(2, 1, 2))
    assert_exact(nn.Conv3d(2, 3, 3, stride=2, padding=1), rand(1, 2, 8, 8, 8), grid=(2, 2, 2))
    assert_exact(nn.Conv1d(2, 3, 9, padding=4), rand(1, 2, 32), grid=(4,))
    assert len(calls) == 4 + 8 + 4


def test_halos_over_several_tiles(calls):
    """A kernel of 13 on tiles of 3 rows reads from ranks that are no neighbours."""
    assert_exact(nn.Conv2d(2, 3, 13, padding=6), rand(1, 2, 12, 12), grid=(4, 2))
    assert len(calls) == 8


def test_a_cut_batch_and_frozen_weights(calls):
    net = nn.Conv2d(2, 3, 3, padding=1)
    assert_exact(net, rand(4, 2, 8, 8), grid=(2, 2), dims=(0, 2))
    net.requires_grad_(False)
    assert_exact(net, rand(4, 2, 8, 8), grid=(2, 2))
    net.bias.requires_grad_(True)
    assert_exact(net, Constant(rand(4, 2, 8, 8)), grid=(2, 2))
    assert len(calls) == 3 * (1 if UNDER_TORCHRUN else 4)


def test_what_is_not_aligned_takes_the_general_path(calls):
    assert_exact(nn.Conv2d(2, 3, 3, stride=2, padding=1), rand(1, 2, 10, 8), grid=(2, 1))
    assert_exact(nn.Conv2d(2, 3, 3), rand(1, 2, 8, 8), grid=(2, 1))
    assert_exact(nn.Conv2d(2, 3, 3, padding=1), rand(1, 2, 2, 8), grid=(3, 1))
    assert not calls


def test_the_tile_itself_is_what_is_kept_for_backward():
    """No padded copy: what a convolution saves is the memory that its input has anyway."""
    saved: list[int] = []

    def keep(tensor):
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    def program(x):
        y = x * 1
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            torch.nn.functional.conv2d(y, torch.ones(2, 2, 3, 3).double(), padding=1)
        assert y.to_local().untyped_storage().data_ptr() in saved
        return y

    on_tiles(program, [rand(1, 2, 8, 8)], (2, 1))


@pytest.mark.parametrize(
    ("channels", "kernel", "size", "overlaps"),
    [
        (64, 3, 256, True),  # an early layer of a ResNet
        (512, 3, 32, False),  # a late one: the strips are a sixteenth of the tile
        (16, 3, 128, False),  # a tile that is copied in no time
        (4, 31, 1024, False),  # a large kernel
        (64, 7, 256, False),
    ],
)
def test_strips_are_computed_where_they_cost_less_than_a_copy(channels, kernel, size, overlaps):
    placement = Placement(Layout.horizontal((size, size), 2), (-2, -1), Loopback())
    windows = ((-2, SlidingWindow(size, size, kernel, 1, kernel // 2, 1)),)
    weights = channels * kernel**2
    assert additive_halo.pays(placement, windows, channels, weights) == overlaps


class Loopback(Serial):
    """A rank that is told of another one."""

    size = 2
