"""Padding pads the image, and tiles only where they lie at its border."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from mpi4dl.comm.threads import run_threads
from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]


def padding(pad, mode="constant", value=None):
    return lambda x: F.pad(x, pad, mode, value)


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize(
    "pad",
    [
        (1, 2),
        (0, 1, 0, 1),
        (3, 0, 0, 5),
        (30, 20, 1, 40),
        (0, 0, 0, 0, 2, 1),
        (1, 1, 2, 2, 3, 0, 1, 1),
    ],
    ids=str,
)
def test_constant_padding(pad, grid):
    assert_exact(padding(pad), rand(2, 3, 13, 11), grid=grid)
    assert_exact(padding(pad, value=-1.5), rand(2, 3, 13, 11), grid=grid)


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize(
    "pad",
    [
        (-1, -2),
        (-1, 2, 3, -4),
        (-9, 0, 0, -12),
        (-5, 20, -13, 1),
        (20, -11, 0, 0),
        (-3, -8),
        (0, 0, 0, 0, -1, 0),
    ],
    ids=str,
)
def test_negative_padding_crops(pad, grid):
    assert_exact(padding(pad, value=2.0), rand(1, 3, 13, 11), grid=grid)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize(
    "pad",
    [(1, 1, 1, 1), (2, 0, 0, 3), (0, 4, 5, 0), (10, 9, 12, 11), (-1, 2, 3, -2), (-3, -2, -4, 1)],
    ids=str,
)
def test_modes_that_copy_pixels(mode, pad, grid):
    assert_exact(padding(pad, mode), rand(1, 2, 13, 11), grid=grid)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "layout", [NOT_A_GRID, mpi4dl.Layout.from_cuts((9, 12), [(1, 1, 8), (0, 11)])]
)
def test_any_boxes(mode, layout):
    assert_exact(padding((3, 4, 2, 5), mode), rand(1, 2, 9, 12), layout=layout)
    assert_exact(padding((3, -4, -2, 5)), rand(1, 2, 9, 12), layout=layout)
    assert_exact(
        nn.Sequential(nn.Conv2d(2, 3, 5, padding=2, padding_mode=mode), nn.Conv2d(3, 2, 3)),
        rand(1, 2, 9, 12),
        layout=layout,
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_more_ranks_than_rows(mode):
    assert_exact(padding((1, 1, 2, 1), mode), rand(1, 2, 3, 2), grid=(5, 2))
    assert_exact(padding((0, 1, 2, 2), mode), rand(1, 2, 3, 3), grid=(2, 5))
    assert_exact(padding((0, 1, 2, 2), mode), rand(1, 2, 3, 3), grid=(5,), dims=(-1,))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_one_and_three_dimensions(mode):
    assert_exact(padding((4, 7), mode), rand(2, 3, 11), grid=(3,))
    assert_exact(padding((2, 1, 3, 0, 1, 2), mode), rand(1, 2, 5, 6, 7), grid=(2, 2, 2))
    assert_exact(padding((2, 1, 3, 0, 1, 2), mode), rand(1, 2, 5, 6, 7), grid=(3, 2), dims=(2, 4))
    assert_exact(padding((2, 1, 3, 0), mode), rand(3, 2, 6, 7), grid=(2, 2), dims=(0, 2))


def test_the_batch_may_be_cut_and_padded():
    assert_exact(
        padding((0, 0, 0, 0, 0, 0, 2, 1), value=3.0), rand(3, 2, 4, 5), grid=(2,), dims=(0,)
    )


@pytest.mark.parametrize(
    "layer",
    [
        nn.ZeroPad2d((1, 2, 0, 3)),
        nn.ConstantPad2d(2, 0.5),
        nn.ReflectionPad2d((3, 1, 2, 0)),
        nn.ReplicationPad2d(4),
        nn.CircularPad2d((1, 5, 2, 3)),
    ],
    ids=str,
)
def test_padding_layers(layer):
    assert_exact(nn.Sequential(layer, nn.Conv2d(2, 3, 3, stride=2)), rand(1, 2, 9, 10), grid=(2, 2))


def test_layers_of_one_and_three_dimensions():
    assert_exact(nn.ReflectionPad1d(3), rand(2, 2, 9), grid=(3,))
    assert_exact(nn.ReplicationPad3d(1), rand(1, 2, 4, 5, 6), grid=(1, 2, 2))
    assert_exact(nn.ReflectionPad2d(1), rand(2, 7, 6), grid=(2, 2))


def test_other_names_of_padding():
    assert_exact(lambda x: torch.constant_pad_nd(x, [1, 2, 3, 4], 0.5), rand(1, 2, 6, 7))
    assert_exact(lambda x: torch._C._nn.pad(x, [1, 2], "circular"), rand(2, 6, 7), grid=(2, 2))
    assert_exact(lambda x: torch._C._nn.reflection_pad2d(x, [1, 2, 0, 1]), rand(1, 2, 6, 7))
    assert_exact(lambda x: F.pad(input=x, pad=[1, 2], mode="constant", value=7), rand(1, 2, 6, 7))


def test_amoebanet_shift():
    net = nn.Conv2d(2, 3, 1, stride=2)
    assert_exact(lambda x: F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:] * x, rand(1, 2, 9, 11), grid=(2, 3))
    assert_exact(
        nn.Sequential(nn.ReLU(), nn.ZeroPad2d((0, 1, 0, 1)), nn.ZeroPad2d((-1, 0, -1, 0)), net),
        rand(1, 2, 9, 11),
        grid=(3, 2),
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_masks_and_integers(dtype):
    assert_exact(padding((3, 1, 1, 2)), (rand(2, 7, 6) > 0).to(dtype), grid=(2, 2))
    assert_exact(padding((2, 1)), (rand(2, 7, 6) > 0).to(dtype), grid=(2, 2))


@pytest.mark.parametrize(
    ("pad", "mode", "message"),
    [
        ((7, 0, 0, 0), "reflect", "less than the corresponding input dimension"),
        ((8, 0, 0, 0), "circular", "more than once"),
        ((1, 1, 1), "constant", "divisible by 2"),
        ((-9, 1), "constant", "must be non-negative"),
        ((1, 1), "bogus", "bogus"),
    ],
)
def test_pytorchs_own_errors(pad, mode, message):
    with pytest.raises((RuntimeError, NotImplementedError), match=message) as one_process:
        F.pad(rand(1, 2, 5, 7), pad, mode)
    assert_refused(
        lambda x: F.pad(x, pad, mode),
        rand(1, 2, 5, 7),
        grid=(2, 3),
        error=one_process.type,
        match=message,
    )


def test_constant_padding_and_cropping_send_nothing():
    def program(comm):
        x = mpi4dl.shard(rand(1, 2, 9, 11), grid=(2, 3))
        comm.all_reduce(torch.zeros(1))
        before = comm.messages_sent
        F.pad(F.pad(x, (5, 1, 2, 30)), (-7, 2, 1, -3)).to_local()
        comm.all_reduce(torch.zeros(1))
        return comm.messages_sent - before

    assert run_threads(6, program) == [0] * 6


def test_reflection_inside_a_tile_sends_nothing():
    def program(comm):
        x = mpi4dl.shard(rand(1, 2, 9, 11), grid=(2, 3))
        F.pad(x, (2, 2, 3, 3), "reflect")
        comm.all_reduce(torch.zeros(1))
        return comm.messages_sent

    assert run_threads(6, program) == [0] * 6


def test_flattened_image_dimensions_are_refused():
    assert_refused(lambda x: F.pad(x.flatten(2), (1, 1)), rand(1, 2, 5, 7), match="flattened")
