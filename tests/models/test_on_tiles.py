"""The models know nothing of tiles; on tiles they are what they are in one process."""

import pytest

from mpi4dl.models import build
from support.exactness import assert_exact, rand

IMAGE = (2, 3, 37, 51)
VOLUME = (1, 2, 13, 11, 18)
CASES = {
    "resnet_v1": ("resnet_v1", {"depth": 8}, IMAGE),
    "resnet_v2": ("resnet_v2", {"depth": 11}, IMAGE),
    "resnet18": ("resnet18", {"num_classes": 5}, IMAGE),
    "amoebanet_d": ("amoebanet_d", {"num_layers": 3, "num_filters": 16}, IMAGE),
    "unet": ("unet", {"base": 4, "depth": 3}, IMAGE),
    "unet, interpolating": (
        "unet",
        {"base": 4, "depth": 3, "upsampling": "interpolate", "norm": "group"},
        IMAGE,
    ),
    "unet 3d": (
        "unet",
        {"base": 4, "depth": 2, "dims": 3, "in_channels": 2, "norm": "instance"},
        VOLUME,
    ),
    "unet 3d, interpolating": (
        "unet",
        {"base": 4, "depth": 2, "dims": 3, "in_channels": 2, "upsampling": "interpolate"},
        VOLUME,
    ),
}


@pytest.mark.parametrize("grid", [(2, 2), (1, 3)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_odd_sizes(name, grid):
    model, options, shape = CASES[name]
    assert_exact(build(model, **options), rand(*shape), grid=grid)


def test_volumes_cut_in_all_three_dimensions():
    model, options, shape = CASES["unet 3d"]
    assert_exact(build(model, **options), rand(*shape), grid=(2, 1, 2))


@pytest.mark.parametrize("name", ["resnet_v2", "amoebanet_d", "unet"])
def test_more_ranks_than_rows_at_the_smallest_size(name):
    """Not smaller: BatchNorm over two values alone magnifies rounding ten thousand times."""
    model, options, _ = CASES[name]
    assert_exact(build(model, **options), rand(3, 3, 33, 17), grid=(4, 2))
