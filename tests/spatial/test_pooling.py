"""Pooling on tiles is pooling of the whole image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support.exactness import assert_exact, assert_refused, rand

GRIDS = [(1, 2), (3, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(3, 1, 1),
        nn.MaxPool2d(2, 2, ceil_mode=True),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d((3, 2), (2, 3), (1, 0), dilation=(2, 1), ceil_mode=True),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AvgPool2d(3, 2, 0, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d(4, 3, 2, ceil_mode=True, divisor_override=5),
        nn.LPPool2d(2, 3, stride=2),
        nn.LPPool2d(4, (2, 3), ceil_mode=True),
        nn.LPPool2d(float("inf"), 2),
    ],
    ids=str,
)
def test_pool2d(pool, grid):
    assert_exact(pool, rand(2, 3, 11, 14), grid=grid)


@pytest.mark.parametrize("size", [(14, 11), (15, 12), (16, 13), (3, 4)])
def test_ceil_mode_at_every_remainder(size):
    for pool in (nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(3, 2, 1, ceil_mode=True)):
        assert_exact(pool, rand(1, 2, *size), grid=(2, 1))
        assert_exact(pool, rand(1, 2, *size), grid=(2, 2))


def test_pool_1d_and_3d():
    for pool in (nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(3, 2, 1), nn.LPPool1d(2, 3)):
        assert_exact(pool, rand(2, 3, 17), grid=(3,))
    for pool in (nn.MaxPool3d(3, 2, 1), nn.AvgPool3d(3, 2, 1, count_include_pad=False)):
        assert_exact(pool, rand(1, 2, 7, 9, 8), grid=(2, 1, 2))
        assert_exact(pool, rand(1, 2, 7, 9, 8), grid=(2, 2), dims=(-3, -1))


@pytest.mark.parametrize("grid", [(2, 1, 2), (1, 3, 2), (5, 1, 1)])
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool3d(3, 2, 1, ceil_mode=True),
        nn.MaxPool3d((2, 3, 1), (1, 2, 3), dilation=(3, 1, 2), ceil_mode=True),
        nn.MaxPool3d(2, 1, 1, dilation=2),
        nn.AvgPool3d(3, 2, 1, ceil_mode=True),
        nn.AvgPool3d((3, 2, 2), 2, (1, 0, 1), ceil_mode=True, count_include_pad=False),
        nn.AvgPool3d(3, (1, 2, 3), 1, divisor_override=5),
        nn.LPPool3d(2, 2),
        nn.LPPool3d(4, (1, 2, 3), stride=(1, 2, 1), ceil_mode=True),
    ],
    ids=str,
)
def test_pool3d(pool, grid):
    assert_exact(pool, rand(2, 2, 7, 8, 6), grid=grid)


def test_ties_go_to_the_first_as_in_one_process():
    ties = torch.relu(rand(1, 2, 12, 12) - 1)
    assert_exact(nn.MaxPool2d(3, 2, 1), ties, grid=(2, 2))
    assert_exact(nn.AdaptiveMaxPool2d(1), ties, grid=(2, 3))
    assert_exact(nn.AdaptiveMaxPool2d((2, 3)), ties, grid=(3, 2))
    assert_exact(nn.AdaptiveMaxPool2d((7, 9)), ties, grid=(3, 2))
    assert_exact(torch.amax, torch.zeros(1, 2, 5, 7, dtype=torch.float64), grid=(2, 2))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("size", [1, (2, 3), (1, 4), 6, (11, 9), (20, 17)])
@pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
def test_adaptive_pool2d(kind, size, grid):
    assert_exact(kind(size), rand(2, 3, 13, 14), grid=grid)


def test_adaptive_pooling_of_one_dimension():
    assert_exact(nn.AdaptiveAvgPool2d((None, 1)), rand(2, 3, 9, 8), grid=(2, 2))
    assert_exact(nn.AdaptiveAvgPool2d((None, 1)), rand(2, 3, 9, 8), grid=(3, 1))
    assert_exact(nn.AdaptiveAvgPool2d((5, None)), rand(2, 3, 9, 8), grid=(2, 2))
    assert_exact(nn.AdaptiveMaxPool2d((1, None)), rand(2, 3, 9, 8), grid=(2, 2))


def test_adaptive_pooling_to_few_outputs_of_a_large_image():
    for kind in (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d):
        assert_exact(kind((2, 3)), rand(1, 2, 33, 41), grid=(2, 2))
        assert_exact(kind((2, 3)), rand(1, 2, 33, 41), grid=(7, 1))
    assert_exact(nn.AdaptiveAvgPool1d(4), rand(1, 2, 67), grid=(5,))
    assert_exact(nn.AdaptiveMaxPool3d((2, 1, 2)), rand(1, 2, 9, 8, 11), grid=(2, 2, 1))
    assert_exact(nn.AdaptiveAvgPool3d(2), rand(1, 2, 9, 8, 11), grid=(2, 2, 2))


def test_more_ranks_than_rows():
    for pool in (nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)):
        assert_exact(pool, rand(1, 2, 3, 2), grid=(4, 2))
    assert_exact(nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2)), rand(1, 2, 8, 8), grid=(5, 3))
    assert_exact(nn.AdaptiveMaxPool2d(1), rand(1, 2, 3, 2), grid=(4, 2))


def test_batch_cut():
    for pool in (nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)):
        assert_exact(pool, rand(4, 2, 9, 8), grid=(2,), dims=(0,))
    assert_exact(nn.AdaptiveAvgPool2d(1), rand(4, 2, 9, 8), grid=(2, 2), dims=(0, 3))


@pytest.mark.parametrize("pool", [F.max_pool2d, F.adaptive_max_pool2d])
def test_indices_are_refused(pool):
    assert_refused(
        lambda x: pool(x, 2, return_indices=True), rand(1, 2, 8, 8), match="return_indices=False"
    )


def test_integer_tiles():
    image = torch.arange(2 * 63).view(1, 2, 7, 9)
    assert_exact(lambda x: F.max_pool2d(x.float(), 2).long(), image, grid=(2, 2))


@pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_adaptive_pooling_of_integers_is_refused_as_in_one_process(kind, size):
    """Their averages would be rounded to zero."""
    image = torch.arange(2 * 99).view(1, 2, 9, 11)
    with pytest.raises((NotImplementedError, RuntimeError)):
        kind(size)(image)
    for grid in [(2, 2), (10, 1)]:
        assert_refused(kind(size), image, grid=grid, error=(NotImplementedError, RuntimeError))
