"""Normalisation on tiles uses the statistics of the whole image."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mpi4dl.spatial.channel_norm import moments_by_pieces
from support.exactness import (
    Constant,
    assert_exact,
    assert_refused,
    compare,
    on_tiles,
    rand,
    rounding_errors,
    single_process,
)

GRIDS = [(1, 2), (3, 1), (2, 2), (2, 3)]


class Twice(nn.Module):
    """Two training steps, so that running statistics are used more than once, then eval mode."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x):
        a = self.norm(x)
        b = self.norm(x * x)
        self.norm.eval()
        c = self.norm(x)
        self.norm.train()
        return a, b, c


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, affine=False, momentum=0.3),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.GroupNorm(2, 4),
        nn.GroupNorm(1, 4, affine=False),
        nn.GroupNorm(4, 4),
        nn.InstanceNorm2d(4),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.LocalResponseNorm(3),
        nn.LayerNorm([4, 9, 10]),
        nn.LayerNorm([9, 10]),
        nn.LayerNorm(10),
        nn.RMSNorm([9, 10]),
        nn.LayerNorm([9, 10], elementwise_affine=False),
    ],
    ids=str,
)
def test_norms(norm, grid):
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    assert_exact(Twice(norm), rand(3, 4, 9, 10) * 3 + 1, grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_sync_batch_norm_is_batch_norm(grid):
    norm = nn.BatchNorm2d(4)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    whole = Twice(norm).double()
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
    assert isinstance(synced.norm, nn.SyncBatchNorm)
    x = rand(3, 4, 9, 10) * 3 + 1
    compare(on_tiles(synced, [x], grid), single_process(whole, [x]), f"SyncBatchNorm on {grid}")


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(4),
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        nn.GroupNorm(2, 4),
        nn.LocalResponseNorm(3),
        nn.LayerNorm([4, 17]),
        nn.LayerNorm(17),
    ],
    ids=str,
)
def test_one_dimension(norm):
    assert_exact(Twice(norm), rand(2, 4, 17) * 3 + 1, grid=(3,))
    assert_exact(Twice(norm), rand(2, 4, 17) * 3 + 1, grid=(19,))


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm3d(4),
        nn.InstanceNorm3d(4, affine=True, track_running_stats=True),
        nn.GroupNorm(2, 4),
        nn.LocalResponseNorm(2, alpha=0.1),
        nn.LayerNorm([4, 5, 6, 7]),
        nn.LayerNorm([6, 7]),
    ],
    ids=str,
)
def test_three_dimensions(norm):
    x = rand(2, 4, 5, 6, 7) * 3 + 1
    assert_exact(Twice(norm), x, grid=(2, 1, 3))
    assert_exact(Twice(norm), x, grid=(2, 2), dims=(2, 4))


def test_the_batch_cut_alone_or_together_with_the_image():
    for norm in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)):
        assert_exact(norm, rand(5, 4, 6, 7), grid=(3,), dims=(0,))
        assert_exact(norm, rand(5, 4, 6, 7), grid=(2, 2), dims=(0, 2))
    assert_exact(nn.LayerNorm(7), rand(5, 4, 6, 7), grid=(2, 2), dims=(0, 2))
    assert_exact(nn.LayerNorm([6, 7]), rand(5, 4, 6, 7), grid=(2, 2), dims=(0, 2))


def test_channels_last_layer_norm_of_convnext():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    assert_exact(Block(), rand(2, 4, 7, 9), grid=(2, 3))


def test_empty_tiles():
    for norm in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)):
        assert_exact(norm, rand(2, 4, 3, 2), grid=(4, 3))


@pytest.mark.parametrize("grid", [(2, 2), (5, 1)], ids=str)
@pytest.mark.parametrize("mean", [0, 1000])
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm([4, 17, 16]),
    ],
    ids=str,
)
def test_float32_keeps_the_digits_that_one_process_keeps(norm, mean, grid):
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = rand(2, 4, 17, 16, dtype=torch.float32) + mean
    exact = single_process(copy.deepcopy(norm).double(), [x.double()])
    one_process = rounding_errors(single_process(norm, [x]), exact)
    # A mean is rounded to float32, and this error counts against a deviation of one.
    rounding = max(mean, 1) * 2**-23
    for name, error in rounding_errors(on_tiles(norm, [x], grid), exact).items():
        assert error <= 2 * one_process[name] + rounding, name


@pytest.mark.parametrize("shape", [(1, 64, 128, 256), (2, 32, 61, 77)], ids=str)
def test_a_large_mean_in_float32_is_off_by_its_own_rounding(shape):
    x = rand(*shape, dtype=torch.float32) + 1000
    mean, _ = moments_by_pieces(x)
    half_a_unit = 2**-15  # in the last place of 1000
    assert (mean.double() - x.double().mean((0, 2, 3))).abs().max() <= 1.25 * half_a_unit


def test_too_few_values_is_an_error_on_every_rank():
    assert_refused(
        nn.BatchNorm2d(4).double(),
        rand(1, 4, 1, 1),
        grid=(2, 1),
        error=ValueError,
        match="more than 1 value per channel",
    )


def test_split_channels_are_refused():
    assert_refused(
        nn.BatchNorm2d(4).double(),
        rand(2, 4, 3, 3),
        grid=(2,),
        dims=(1,),
        match="channels are split",
    )


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize(
    "module", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4)]
)
def test_one_image_in_channels_last(module, grid):
    """Its gradient comes in another memory format: PyTorch's kernel may take one for the other."""
    image = rand(1, 4, 9, 7).to(memory_format=torch.channels_last)
    assert_exact(module, image, grid=grid)
    assert_exact(nn.Sequential(module, nn.Flatten(0, 1), nn.Unflatten(0, (1, 4))), image, grid=grid)


def test_a_constant_image_in_channels_last_whose_batch_is_split():
    """Every rank has whole images; PyTorch's own group norm would crash on them in backward."""
    image = rand(3, 4, 9, 7).to(memory_format=torch.channels_last)
    module = nn.InstanceNorm2d(4, affine=True)
    assert_exact(module, Constant(image), grid=(2,), dims=(0,))


def test_the_responses_of_integers_are_those_of_one_process():
    image = torch.arange(2 * 4 * 63).view(2, 4, 7, 9)
    for grid in [(2, 2), (8, 1)]:
        norm = nn.LocalResponseNorm(3, alpha=0.1)
        # In float32, whose powers are rounded by where in memory a number lies.
        torch.testing.assert_close(on_tiles(norm, [image], grid).outputs[0], norm(image))
