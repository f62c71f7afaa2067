"""Pixels that move into channels, and channels among each other, are those of one process."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from support.exactness import assert_exact, assert_refused, on_tiles, rand

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("r", [1, 2, 3])
def test_pixel_shuffle_and_back(r, grid):
    assert_exact(nn.PixelShuffle(r), rand(2, 18 * r * r, 5, 7), grid=grid)
    assert_exact(nn.PixelUnshuffle(r), rand(2, 3, 5 * r, 7 * r), grid=grid)
    both = nn.Sequential(nn.PixelUnshuffle(r), nn.Conv2d(2 * r * r, 3 * r * r, 3, padding=1))
    assert_exact(nn.Sequential(*both, nn.PixelShuffle(r)), rand(1, 2, 6 * r, 5 * r), grid=grid)


@pytest.mark.parametrize("cuts", [[(1,), (2, 11)], [(0,), (5, 5)], [(7,), ()], [(8,), (1, 12)]])
def test_blocks_that_lie_on_two_tiles_go_to_one(cuts):
    layout = mpi4dl.Layout.from_cuts((9, 12), cuts)
    assert_exact(nn.PixelUnshuffle(3), rand(1, 2, 9, 12), layout=layout)
    assert_exact(nn.PixelShuffle(3), rand(1, 9, 9, 12), layout=layout)


def test_boxes_that_are_no_grid():
    box = mpi4dl.Box.of
    boxes = (box((0, 5), (0, 12)), box((5, 8), (0, 3)), box((5, 8), (3, 12)))
    layout = mpi4dl.Layout((8, 12), boxes)
    assert_exact(nn.PixelUnshuffle(2), rand(1, 2, 8, 12), layout=layout)
    assert_exact(nn.PixelShuffle(2), rand(1, 8, 8, 12), layout=layout)


def test_more_ranks_than_blocks():
    assert_exact(nn.PixelUnshuffle(4), rand(1, 2, 8, 4), grid=(3, 2))
    assert_exact(nn.PixelShuffle(2), rand(1, 4, 2, 1), grid=(3, 2))


def test_without_a_batch_and_with_several_and_with_a_cut_batch():
    assert_exact(nn.PixelShuffle(2), rand(8, 5, 6), grid=(2, 2))
    assert_exact(nn.PixelUnshuffle(2), rand(2, 3, 1, 6, 4), grid=(2, 2))
    assert_exact(nn.PixelShuffle(2), rand(3, 4, 5, 6), grid=(4, 2), dims=(0, 2))
    assert_exact(nn.PixelUnshuffle(2), rand(3, 1, 4, 6), grid=(4, 2), dims=(0, 3))


def test_channels_last_and_other_types():
    x = rand(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    assert_exact(nn.PixelShuffle(2), x, grid=(2, 2))
    mask = torch.arange(96).view(1, 4, 4, 6)
    out = on_tiles(partial(F.pixel_shuffle, upscale_factor=2), [mask], (2, 1)).outputs[0]
    assert torch.equal(out, F.pixel_shuffle(mask, 2))


@pytest.mark.parametrize("grid", [*GRIDS_2D, (6, 1)])
def test_channel_shuffle(grid):
    assert_exact(nn.ChannelShuffle(3), rand(2, 12, 5, 7), grid=grid)
    # PyTorch has no derivative of the native one.
    native = partial(torch.native_channel_shuffle, groups=2)
    assert_exact(lambda x: native(x.detach()), rand(2, 12, 5, 7), grid=grid)


def test_channel_shuffle_of_sequences_volumes_and_cut_batches():
    assert_exact(nn.ChannelShuffle(2), rand(2, 6, 7), grid=(3,))
    assert_exact(nn.ChannelShuffle(2), rand(1, 4, 3, 4, 5), grid=(2, 1, 2))
    assert_exact(nn.ChannelShuffle(2), rand(3, 4, 5, 6), grid=(2, 2), dims=(0, 3))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.PixelShuffle(2), (1, 6, 4, 4)),
        (nn.PixelUnshuffle(2), (1, 1, 5, 4)),
        (nn.ChannelShuffle(4), (1, 6, 4, 4)),
    ],
    ids=str,
)
def test_sizes_that_do_not_divide_are_the_error_of_one_process(module, shape):
    with pytest.raises(RuntimeError) as expected:
        module(rand(*shape))
    message = f"^{re.escape(str(expected.value))}$"
    assert_refused(module, rand(*shape), grid=(2, 1), error=RuntimeError, match=message)


@pytest.mark.parametrize(
    "module", [nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ChannelShuffle(2)], ids=str
)
def test_split_channels_are_refused(module):
    assert_refused(module, rand(1, 8, 4, 4), grid=(2, 1), dims=(1, 2), match="channels are split")


def test_flattened_images_are_refused():
    def fn(x):
        return F.channel_shuffle(x.flatten(1)[..., None], 2)

    assert_refused(fn, rand(1, 2, 6, 8), grid=(1, 2))
