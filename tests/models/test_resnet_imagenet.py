import pytest
import torch

from mpi4dl.models import resnet18, resnet50, resnet101


@pytest.mark.parametrize(
    ("make", "layers", "parameters"),
    [
        (resnet18, 10, 11_689_512),
        (resnet50, 18, 25_557_032),
        (resnet101, 35, 44_549_160),
    ],
)
def test_size(make, layers, parameters, count):
    assert count(make) == parameters
    with torch.device("meta"):
        assert len(make()) == layers


def test_reduces_by_32():
    with torch.device("meta"):
        features = resnet50()[:-1](torch.empty(1, 3, 225, 160))
    assert features.shape == (1, 2048, 8, 5)


@pytest.mark.parametrize("size", [(1, 1), (65, 33)])
def test_any_size(size):
    model = resnet18(num_classes=5, in_channels=4).eval()
    assert model(torch.randn(1, 4, *size)).shape == (1, 5)


def test_stride_is_on_the_3x3():
    with torch.device("meta"):
        opening = resnet50()[4]
    strides = {m.kernel_size: m.stride for m in opening.body.modules() if hasattr(m, "kernel_size")}
    assert strides == {(1, 1): (1, 1), (3, 3): (2, 2)}
