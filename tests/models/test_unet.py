import pytest
import torch
from torch import nn

from mpi4dl.models import unet
from mpi4dl.models.unet_layers import pad_to


@pytest.mark.parametrize("upsampling", ["transposed", "interpolate"])
@pytest.mark.parametrize("norm", ["batch", "instance", "group", "none"])
@pytest.mark.parametrize("size", [(8, 8), (15, 23), (9, 14, 8)])
def test_labels_every_pixel_at_any_size(size, norm, upsampling):
    with torch.device("meta"):
        model = unet(1, 3, base=4, depth=2, dims=len(size), norm=norm, upsampling=upsampling)
        assert model.eval()(torch.empty(1, 1, *size)).shape == (1, 3, *size)


@pytest.mark.parametrize("depth", [1, 4])
def test_layers(depth):
    with torch.device("meta"):
        assert len(unet(depth=depth)) == 2 * depth + 2


def test_parameters(count):
    # By hand at base 1, one channel and class, depth 1, without normalization: encoder 20,
    # bottleneck 58, transposed convolution 9, decoder 29, head 2.
    tiny = {"in_channels": 1, "num_classes": 1, "base": 1, "depth": 1, "norm": "none"}
    assert count(unet, **tiny) == 20 + 58 + 9 + 29 + 2
    assert count(unet, num_classes=1) == 7_763_041


def test_flow_carries_the_open_skips():
    flow, shapes = torch.randn(2, 3, 10, 13), []
    for layer in unet(base=2, depth=2):
        flow = layer(flow)
        shapes.append([tuple(t.shape[1:]) for t in ((flow,) if torch.is_tensor(flow) else flow)])
    assert shapes == [
        [(2, 5, 6), (2, 10, 13)],
        [(4, 2, 3), (2, 10, 13), (4, 5, 6)],
        [(8, 2, 3), (2, 10, 13), (4, 5, 6)],
        [(4, 5, 6), (2, 10, 13)],
        [(2, 10, 13)],
        [(2, 10, 13)],
    ]


def test_norms_are_what_they_are_called():
    kinds = {"batch": nn.BatchNorm3d, "instance": nn.InstanceNorm3d, "group": nn.GroupNorm}
    for norm, kind in kinds.items():
        found = [m for m in unet(base=4, depth=1, dims=3, norm=norm).modules() if type(m) is kind]
        assert len(found) == 6


def test_padding_appends_zeros():
    padded = pad_to(torch.ones(1, 1, 2, 4), torch.Size((3, 4)))
    assert padded[0, 0].tolist() == [[1] * 4, [1] * 4, [0] * 4]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"dims": 1}, "dims=1; use one of 2, 3"),
        ({"norm": "layer"}, "norm='layer'; use one of 'batch'"),
        ({"upsampling": "nearest"}, "use one of 'transposed', 'interpolate'"),
        ({"depth": 0}, "depth >= 1, not 0"),
    ],
)
def test_wrong_options(options, advice):
    with pytest.raises(ValueError, match=advice):
        unet(**options)
