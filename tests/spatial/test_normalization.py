"""Normalisation on tiles uses the statistics of the whole image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mpi4dl
from support.exactness import assert_exact, on_tiles, rand

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


def test_sync_batch_norm_is_batch_norm():
    reference = nn.BatchNorm2d(4).double()
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(reference))
    x = rand(2, 4, 9, 10)
    want = reference(x)
    got = on_tiles(synced.double(), [x], (2, 2)).outputs[0]
    assert torch.allclose(want, got, rtol=1e-12, atol=1e-12)


def test_one_and_three_dimensions():
    assert_exact(nn.BatchNorm1d(3), rand(2, 3, 17), grid=(3,))
    assert_exact(nn.BatchNorm3d(3), rand(1, 3, 5, 6, 7), grid=(2, 1, 2))
    assert_exact(nn.InstanceNorm3d(3), rand(1, 3, 5, 6, 7), grid=(2, 2), dims=(2, 4))


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


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm([4, 16, 16])])
def test_float32_keeps_its_digits_at_a_mean_of_1000(norm):
    x = rand(2, 4, 16, 16, dtype=torch.float32) + 1000
    want = norm.double()(x.double())
    plain = norm.float()(x)
    got = on_tiles(norm.float(), [x], (2, 2)).outputs[0]
    # The input itself carries a rounding of 1000 · 2⁻²⁴ against a standard deviation of one.
    bound = 1000 * 2**-23
    assert (plain - want).abs().max() < bound
    assert (got - want).abs().max() < bound


def test_too_few_values_is_an_error_on_every_rank():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        on_tiles(nn.BatchNorm2d(4).double(), [rand(1, 4, 1, 1)], (2, 1))


def test_split_channels_are_refused():
    with pytest.raises(mpi4dl.UnsupportedOperator, match="channels are split"):
        on_tiles(nn.BatchNorm2d(4).double(), [rand(2, 4, 3, 3)], (2,), (1,))
