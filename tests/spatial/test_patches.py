"""Unfolding and folding tiles is what it is in one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID

GRIDS_2D = [(1, 1), (1, 2), (3, 1), (2, 2), (2, 3), (7, 1)]
OPTIONS = [
    {"kernel_size": 4, "stride": 4},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 2)},
    {"kernel_size": 3, "dilation": 2, "stride": 3, "padding": 2},
    {"kernel_size": 1, "stride": 3},
]


def folded(**options):
    """Patches, each weighted differently, and summed into an image again."""

    def run(x):
        patches = F.unfold(x, **options)
        weights = torch.linspace(0, 1, patches.shape[-1], dtype=x.dtype)
        y = F.fold(patches * weights, x.shape[-2:], **options)
        return patches, y, y * x

    return run


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_unfold_and_fold(options, grid):
    assert_exact(folded(**options), rand(2, 3, 9, 11), grid=grid)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_unfold_and_fold_elsewhere(options):
    assert_exact(folded(**options), rand(2, 3, 9, 12), layout=NOT_A_GRID)
    assert_exact(folded(**options), rand(3, 3, 9, 11), grid=(2, 2), dims=(0, 2))
    assert_exact(folded(**options), rand(3, 3, 9, 11), grid=(4,), dims=(0,))
    assert_exact(folded(**options), rand(3, 9, 11), grid=(2, 2))


class PatchEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 5)
        self.positions = nn.Parameter(rand(1, 6, 5))
        self.norm = nn.LayerNorm(5)
        self.back = nn.Linear(5, 48)

    def forward(self, x):
        tokens = self.linear(F.unfold(x, 4, stride=4).transpose(1, 2))
        tokens = self.norm(tokens + self.positions)
        image = tokens.transpose(1, 2).view(len(x), 5, 2, 3)
        return image, F.fold(self.back(tokens).transpose(1, 2), (8, 12), 4, stride=4)


@pytest.mark.parametrize("grid", [(1, 2), (3, 1), (2, 2), (2, 3)])
def test_patch_embedding_and_back(grid):
    assert_exact(PatchEmbedding(), rand(2, 3, 8, 12), grid=grid)


def test_modules():
    assert_exact(nn.Unfold(3, padding=1), rand(2, 3, 7, 5), grid=(2, 2))
    assert_exact(nn.Sequential(nn.Unfold(2), nn.Fold((7, 5), 2)), rand(2, 3, 7, 5), grid=(2, 2))


@pytest.mark.parametrize("grid", GRIDS_2D)
def test_sliding_windows_of_tensors(grid):
    x = rand(2, 3, 9, 11)
    for f in (
        lambda x: x.unfold(2, 3, 2).square(),
        lambda x: x.unfold(-1, 2, 3).square(),
        lambda x: x.unfold(1, 2, 1).square(),
        lambda x: x.unfold(2, 3, 3).unfold(3, 3, 3).square(),
        lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).square(),
    ):
        assert_exact(f, x, grid=grid)


def test_sliding_windows_of_signals_and_volumes():
    assert_exact(lambda x: x.unfold(-1, 5, 2) * 2, rand(2, 3, 31), grid=(4,))
    assert_exact(lambda x: x.unfold(0, 2, 1) * 2, rand(3, 3, 31), grid=(2, 2), dims=(0, 2))
    assert_exact(lambda x: x.unfold(3, 3, 1) * 2, rand(1, 2, 4, 5, 6), grid=(2, 2, 2))
    assert_exact(lambda x: x.unfold(-1, 5, 2) * 2, rand(9, 12), layout=NOT_A_GRID)


def test_what_unfold_cannot_do():
    assert_refused(
        lambda x: F.unfold(x, 9),
        rand(1, 2, 7, 9),
        error=mpi4dl.GeometryError,
        match="larger than the padded image",
    )
    assert_refused(
        lambda x: x.unfold(2, 9, 1), rand(1, 2, 7, 9), error=RuntimeError, match="maximum size"
    )
    for f in (lambda x: F.unfold(x.flatten(2)[:, None], 1), lambda x: x.flatten(2).unfold(2, 2, 2)):
        assert_refused(f, rand(1, 2, 7, 9), match="flattened")
    assert_refused(
        lambda x: F.fold(x, 4, 2), rand(1, 8, 9), grid=(2,), dims=(1,), match="channels are split"
    )
