import pytest
import torch

from mpi4dl.models import amoebanet_d


@pytest.mark.parametrize(
    ("num_layers", "num_filters", "parameters"),
    [(3, 64, 1_541_066), (6, 64, 2_686_346), (18, 416, 312_433_690)],
)
def test_parameters(num_layers, num_filters, parameters, count):
    assert count(amoebanet_d, num_layers=num_layers, num_filters=num_filters) == parameters


@pytest.mark.parametrize(
    ("num_layers", "num_filters", "millions"),
    [
        (18, 208, pytest.approx(81.5, abs=0.05)),
        (18, 416, pytest.approx(319, abs=0.5)),
        (36, 544, pytest.approx(1060, abs=5)),
        (72, 512, pytest.approx(1840, abs=5)),
    ],
)
def test_published_parameters(num_layers, num_filters, millions, count):
    size = {"num_layers": num_layers, "num_filters": num_filters}
    assert count(amoebanet_d, **size, num_classes=1000) / 1e6 == millions


def test_layers_and_shapes():
    with torch.device("meta"):
        model = amoebanet_d(3, 32)
        flow, shapes = model[0](torch.empty(2, 3, 65, 40)), []
        for layer in model[1:-1]:
            flow = layer(flow)
            shapes.append([tuple(tensor.shape[1:]) for tensor in flow])
    outputs = [
        (48, 17, 10),
        (96, 9, 5),
        (128, 9, 5),
        (192, 5, 3),
        (256, 5, 3),
        (384, 3, 2),
        (512, 3, 2),
    ]
    assert len(model) == 3 + 6
    assert [output for output, _ in shapes] == outputs
    # Each skip is the output of the cell before.
    assert [skip for _, skip in shapes] == [(8, 33, 20), *outputs[:-1]]


@pytest.mark.parametrize("size", [(1, 1), (31, 64), (47, 33)])
def test_any_size(size):
    model = amoebanet_d(3, 8, num_classes=4, in_channels=1).eval()
    assert model(torch.randn(2, 1, *size)).shape == (2, 4)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"num_layers": 19}, "multiple of 3, not 19; use 18 or 21"),
        ({"num_layers": 0}, "multiple of 3, not 0; use 3"),
        ({"num_filters": 100}, "multiple of 8, not 100; use 96 or 104"),
    ],
)
def test_wrong_sizes_name_the_nearest(options, advice):
    with pytest.raises(ValueError, match=advice + "$"):
        amoebanet_d(**options)
