"""Convolutions and transposed convolutions on tiles are those of one process."""

from __future__ import annotations

import pytest
from torch import nn

import mpi4dl
from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 1},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3},
        {"kernel_size": (4, 1), "padding": (2, 0)},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 7, "stride": 2, "padding": 3},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": 3, "padding": 4, "dilation": 2},
        {"kernel_size": 3, "padding": "same", "dilation": 2},
        {"kernel_size": 5, "padding": "valid", "bias": False},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": (1, 7), "padding": (0, 3), "stride": (1, 2)},
        {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
        {"kernel_size": 5, "padding": 2, "padding_mode": "replicate"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular", "stride": 2},
    ],
    ids=str,
)
def test_conv2d(options, grid):
    assert_exact(nn.Conv2d(4, 6, **options), rand(2, 4, 13, 17), grid=grid)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_conv2d_same_with_an_even_kernel_pads_more_after_than_before():
    assert_exact(nn.Conv2d(3, 4, 4, padding="same"), rand(1, 3, 9, 8), grid=(2, 2))
    assert_exact(nn.Conv2d(3, 4, 4, padding="same"), rand(1, 3, 9, 8), grid=(3, 1))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tiles_smaller_than_the_halo_and_empty_tiles(size):
    assert_exact(nn.Conv2d(3, 4, 7, padding=3), rand(1, 3, size, size), grid=(3, 2))
    assert_exact(nn.Conv2d(3, 4, 3, stride=2, padding=1), rand(1, 3, size, 5), grid=(4, 2))


@pytest.mark.parametrize("grid", [(2,), (3,), (5,)])
def test_conv1d(grid):
    assert_exact(nn.Conv1d(3, 4, 5, stride=2, padding=2), rand(2, 3, 31), grid=grid)
    assert_exact(nn.Conv1d(3, 3, 4, groups=3, dilation=3), rand(2, 3, 31), grid=grid)


@pytest.mark.parametrize("grid", [(2, 2, 2), (1, 2, 3), (3, 1, 1)])
def test_conv3d(grid):
    assert_exact(nn.Conv3d(2, 3, 3, stride=2, padding=1), rand(1, 2, 7, 9, 11), grid=grid)
    assert_exact(nn.Conv3d(2, 4, (1, 3, 5), groups=2, padding=2), rand(1, 2, 5, 6, 7), grid=grid)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_and_same_in_one_and_three_dimensions(mode):
    signal, volume = rand(2, 3, 13), rand(1, 2, 5, 7, 6)
    for net in (
        nn.Conv1d(3, 4, 5, padding=3, stride=2, padding_mode=mode),
        nn.Conv1d(3, 4, 3, padding="same", dilation=2, padding_mode=mode),
    ):
        assert_exact(net, signal, grid=(3,))
        assert_exact(net, signal, grid=(9,))
    for net in (
        nn.Conv3d(2, 3, 3, padding=(2, 0, 1), stride=(1, 2, 1), padding_mode=mode),
        nn.Conv3d(2, 3, (3, 1, 5), padding="same", padding_mode=mode),
    ):
        assert_exact(net, volume, grid=(2, 1, 2))
        assert_exact(net, volume, grid=(1, 3, 2))


@pytest.mark.parametrize("options", [{"dilation": 3}, {"groups": 2}], ids=str)
def test_same_with_zeros_in_one_and_three_dimensions(options):
    line = nn.Conv1d(2, 4, 5, padding="same", **options)
    box = nn.Conv3d(2, 4, (3, 5, 1), padding="same", **options)
    assert_exact(line, rand(2, 2, 13), grid=(4,))
    assert_exact(box, rand(1, 2, 5, 7, 6), grid=(2, 2, 1))


def test_volumes_cut_over_any_two_dimensions():
    assert_exact(nn.Conv3d(2, 3, 3, padding=1), rand(1, 2, 7, 6, 5), grid=(2, 2), dims=(2, 4))


def test_the_batch_may_be_cut_too():
    assert_exact(nn.Conv2d(3, 4, 3, padding=1), rand(3, 3, 8, 9), grid=(2, 2), dims=(0, 2))
    assert_exact(nn.Conv2d(3, 4, 3, padding=1), rand(3, 3, 8, 9), grid=(2, 1, 2), dims=(0, 2, 3))


def test_without_a_batch_dimension():
    assert_exact(nn.Conv2d(3, 4, 3, padding=1), rand(3, 8, 9), grid=(2, 2))


@pytest.mark.parametrize("cuts", [[(1,), (2, 12)], [(12,), (1, 2)], [(0,), (0, 17)], [(7,), ()]])
def test_any_cuts(cuts):
    layout = mpi4dl.Layout.from_cuts((13, 17), cuts)
    net = nn.Sequential(nn.Conv2d(2, 3, 5, stride=2, padding=2), nn.Conv2d(3, 2, 3, padding=1))
    assert_exact(net, rand(1, 2, 13, 17), layout=layout)


def test_boxes_that_are_no_grid():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Conv2d(3, 2, 3, padding=1))
    assert_exact(net, rand(1, 2, 9, 12), layout=NOT_A_GRID)


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel_size": 4, "stride": 2, "padding": 1},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 1, "stride": 3, "output_padding": 2},
        {"kernel_size": 3, "stride": 4, "output_padding": 3, "bias": False},
        {"kernel_size": 5, "stride": 2, "padding": 3, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "groups": 2},
        {"kernel_size": 3, "stride": 1, "padding": 0, "dilation": 3, "output_padding": 2},
    ],
    ids=str,
)
def test_transposed_conv2d(options, grid):
    assert_exact(nn.ConvTranspose2d(4, 6, **options), rand(2, 4, 7, 9), grid=grid)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel_size": 2, "stride": 4, "output_padding": 3, "groups": 2},
        {"kernel_size": 3, "dilation": 3, "padding": 2, "output_padding": 2, "bias": False},
    ],
    ids=str,
)
def test_transposed_conv_1d_and_3d_with_output_padding(options):
    for grid in [(3,), (7,)]:
        assert_exact(nn.ConvTranspose1d(2, 4, **options), rand(2, 2, 6), grid=grid)
    for grid in [(2, 1, 2), (1, 3, 2)]:
        assert_exact(nn.ConvTranspose3d(2, 4, **options), rand(1, 2, 4, 3, 5), grid=grid)


def test_transposed_conv_1d_and_3d_and_with_more_ranks_than_rows():
    assert_exact(nn.ConvTranspose1d(3, 2, 4, stride=3, padding=1), rand(1, 3, 11), grid=(3,))
    assert_exact(
        nn.ConvTranspose3d(2, 3, 3, stride=2, padding=1), rand(1, 2, 4, 5, 6), grid=(2, 1, 2)
    )
    assert_exact(nn.ConvTranspose2d(2, 3, 3, stride=2), rand(1, 2, 2, 2), grid=(3, 2))
    assert_exact(
        nn.ConvTranspose2d(2, 3, 3, stride=2), rand(1, 2, 5, 3), grid=(2, 1), dims=(-2, -1)
    )


def test_a_kernel_larger_than_the_image_is_the_same_error_as_in_one_process():
    net, message = nn.Conv2d(3, 4, 7).double(), "larger than the padded image"
    assert_refused(net, rand(1, 3, 5, 5), grid=(2, 1), error=mpi4dl.GeometryError, match=message)
