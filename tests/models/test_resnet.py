import pytest
import torch
from torch import nn

from mpi4dl.models import resnet_v1, resnet_v2


@pytest.mark.parametrize(
    ("make", "depth", "layers", "parameters"),
    [
        # The original's counts, less the batch normalizations it never uses.
        (resnet_v1, 20, 11, 274_608 - 1_542),
        (resnet_v2, 110, 38, 7_185_008 - 22_086),
    ],
)
def test_size(make, depth, layers, parameters, count):
    assert count(make, depth=depth) == parameters
    with torch.device("meta"):
        assert len(make(depth=depth)) == layers


@pytest.mark.parametrize("make", [resnet_v1, resnet_v2])
def test_default_has_twelve_cells_a_stage(make):
    with torch.device("meta"):
        assert len(make()) == 3 * 12 + 2


@pytest.mark.parametrize("size", [(1, 1), (33, 20)])
@pytest.mark.parametrize(("make", "depth"), [(resnet_v1, 8), (resnet_v2, 11)])
def test_any_size(make, depth, size):
    model = make(depth, num_classes=7, in_channels=1).eval()
    assert model(torch.randn(2, 1, *size)).shape == (2, 7)


@pytest.mark.parametrize(
    ("make", "depth", "advice"),
    [
        (resnet_v1, 75, "not 75; use depth 74 or 80"),
        (resnet_v1, 2, "not 2; use depth 8"),
        (resnet_v2, 100, "not 100; use depth 92 or 101"),
        (resnet_v2, -30, "not -30; use depth 11"),
    ],
)
def test_wrong_depth_names_the_nearest(make, depth, advice):
    with pytest.raises(ValueError, match=advice + "$"):
        make(depth)


def test_v2_widths_and_sizes():
    x, shapes = torch.randn(2, 3, 17, 32), []
    for layer in resnet_v2(20)[:-1]:
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    stages = [(64, 17, 32)] * 2 + [(128, 9, 16)] * 2 + [(256, 5, 8)] * 2
    assert shapes == [(16, 17, 32), *stages]


def test_v2_first_cell_convolves_its_input_directly():
    model = resnet_v2(20)
    assert isinstance(model[1].body[0], nn.Conv2d)
    assert isinstance(model[2].body[0], nn.BatchNorm2d)


def test_v2_sum_is_not_rectified():
    assert model_output_has_negatives(resnet_v2(11)[:-1])
    assert not model_output_has_negatives(resnet_v1(8)[:-1])


def model_output_has_negatives(model: nn.Sequential) -> bool:
    return bool((model(torch.randn(2, 3, 16, 16)) < 0).any())
