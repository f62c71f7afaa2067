"""Ranks without channels or images: many of PyTorch's kernels refuse, or crash on, what they hold.

An error on such a rank alone would leave all others waiting.
"""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn

from support.exactness import assert_exact, rand

MODULES = {
    "max_pool": nn.MaxPool2d(2),
    "avg_pool": nn.AvgPool2d(3, 1, 1),
    "avg_pool1d": nn.Sequential(nn.Flatten(1, 2), nn.AvgPool1d(2)),
    "lp_pool": nn.LPPool2d(2, 2),
    "adaptive_max_pool": nn.AdaptiveMaxPool2d(2),
    "one adaptive maximum": nn.AdaptiveMaxPool2d(1),
    "adaptive_avg_pool": nn.AdaptiveAvgPool2d((8, 3)),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest": nn.Upsample(scale_factor=2),
    "bicubic": nn.Upsample(size=(5, 9), mode="bicubic"),
    "reflect": nn.ReflectionPad2d(1),
    "circular": nn.CircularPad2d((1, 0, 2, 1)),
    "layer_norm": nn.LayerNorm([8, 6]),
}
BATCH_MODULES = {
    "batch_norm": nn.BatchNorm2d(4),
    "instance_norm": nn.InstanceNorm2d(4, affine=True),
    "group_norm": nn.GroupNorm(2, 4),
    "conv": nn.Conv2d(4, 3, 3, 2, 1),
    "conv_transpose": nn.ConvTranspose2d(4, 3, 3, 2, 1),
    "pixel_shuffle": nn.PixelShuffle(2),
    "unfold": nn.Unfold(2),
}
CUTS = {"channels": ((1,), (6,)), "images": ((0,), (4,)), "images and rows": ((0, 2), (3, 3))}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", MODULES)
def test_ranks_without_channels_or_images(name, cut):
    dims, grid = CUTS[cut]
    assert_exact(MODULES[name], rand(2, 4, 8, 6), dims=dims, grid=grid)


@pytest.mark.parametrize("cut", ["images", "images and rows"])
@pytest.mark.parametrize("name", BATCH_MODULES)
def test_ranks_without_images(name, cut):
    dims, grid = CUTS[cut]
    assert_exact(BATCH_MODULES[name], rand(2, 4, 8, 6), dims=dims, grid=grid)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_quantiles_along_columns(keepdim, cut):
    dims, grid = CUTS[cut]
    assert_exact(lambda x: x.quantile(0.3, -1, keepdim), rand(2, 4, 8, 6), dims=dims, grid=grid)


@pytest.mark.parametrize("pool", [F.max_pool3d, F.avg_pool3d])
def test_a_volume_of_one_channel_on_a_rank_is_not_taken_for_channels_last(pool):
    """(C, D, H, W) cut to a depth of one: contiguous and channels_last at once."""
    assert_exact(lambda x: pool(x, 2, 1), rand(2, 3, 8, 6), dims=(1, 2), grid=(3, 2))


@pytest.mark.parametrize("size", [1, 2, (1, None)], ids=str)
def test_adaptive_maxima_where_images_and_rows_are_cut(size):
    assert_exact(nn.AdaptiveMaxPool2d(size), rand(3, 4, 8, 6), dims=(0, 2), grid=(2, 2))
