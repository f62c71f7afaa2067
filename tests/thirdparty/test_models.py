"""Networks that other people wrote, unmodified, on tiles: loss and every gradient, in float64."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support.exactness import assert_exact, rand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import segmentation_models_pytorch as smp
    import timm
    import torchvision
    from monai.networks import nets

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def without_dropout(model: nn.Module) -> nn.Module:
    """Randomness differs between tiles and one process; everything else trains."""
    for module in model.modules():
        if getattr(module, "drop_rate", 0.0):
            module.drop_rate = 0.0  # some call F.dropout themselves
        if "Drop" in type(module).__name__ or type(module).__name__ == "StochasticDepth":
            for name in ("p", "drop_prob"):
                if hasattr(module, name):
                    setattr(module, name, 0.0)
    return model.train()


def check(model: nn.Module, *shape: int, grid: tuple[int, ...] = (2, 2)) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim == 1 and parameter.abs().sum() == 0:
            nn.init.normal_(parameter, std=0.1)  # zero scales would hide what lies behind them
    assert_exact(without_dropout(model), rand(*shape), grid=grid)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("resnet50", (2, 2)),
        ("resnet50", (3, 1)),
        ("convnext_tiny", (2, 2)),
        ("convnextv2_atto", (1, 3)),
        ("efficientnet_b0", (2, 2)),
        ("efficientnet_b0", (1, 3)),
        ("densenet121", (2, 2)),
        ("mobilenetv3_large_100", (2, 2)),
        ("regnety_002", (2, 2)),
        ("regnety_002", (5, 1)),
        ("res2net50_26w_4s", (1, 2)),
        ("hrnet_w18_small", (2, 2)),
        ("nfnet_l0", (2, 1)),
        ("ghostnet_100", (2, 2)),
        ("resnest14d", (2, 2)),
        ("ecaresnet26t", (2, 2)),
        ("poolformer_s12", (2, 2)),
        ("edgenext_xx_small", (2, 1)),
    ],
)
def test_timm(name, grid):
    shape = (2, 3, 64, 96) if name.startswith("hrnet") else (2, 3, 67, 75)
    check(timm.create_model(name, num_classes=7), *shape, grid=grid)


@pytest.mark.parametrize(
    "name",
    (
        "resnet18 densenet121 mobilenet_v2 mobilenet_v3_small squeezenet1_1 shufflenet_v2_x0_5 "
        "efficientnet_b0 regnet_y_400mf convnext_tiny mnasnet0_5"
    ).split(),
)
def test_torchvision(name):
    check(getattr(torchvision.models, name)(num_classes=7), 2, 3, 67, 75)


@pytest.mark.parametrize(
    "name", ["fcn_resnet50", "deeplabv3_resnet50", "lraspp_mobilenet_v3_large"]
)
def test_torchvision_segmentation(name):
    make = getattr(torchvision.models.segmentation, name)
    check(make(weights=None, weights_backbone=None, num_classes=4), 2, 3, 65, 71)


@pytest.mark.parametrize(
    "name",
    ["Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3Plus", "Linknet", "PAN", "UPerNet"],
)
def test_segmentation_models(name):
    model = getattr(smp, name)("resnet18", encoder_weights=None, classes=3)
    check(model, 2, 3, *((128, 160) if name == "PAN" else (64, 96)))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: nets.UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2), (20, 24, 16)),
        (lambda: nets.BasicUNet(3, 1, 2, features=(4, 4, 8, 8, 16, 4)), (35, 33, 32)),
        (lambda: nets.DynUNet(3, 1, 2, (3, 3, 3), (1, 2, 2), (2, 2), (4, 8, 16)), (20, 24, 16)),
        (lambda: nets.SegResNet(3, init_filters=8, in_channels=1), (24, 24, 16)),
        (lambda: nets.AttentionUnet(3, 1, 2, (4, 8, 16), (2, 2)), (20, 24, 16)),
        (lambda: nets.VNet(3, 1, 2), (32, 32, 32)),
    ],
    ids=["UNet", "BasicUNet", "DynUNet", "SegResNet", "AttentionUnet", "VNet"],
)
def test_monai_volumes(model, shape):
    check(model(), 1, 1, *shape, grid=(2, 1, 2))


class WithLoss(nn.Module):
    """A network and its loss, which on tiles is computed from tiles: nothing is gathered."""

    def __init__(self, net: nn.Module, options: dict[str, object]) -> None:
        super().__init__()
        self.net = without_dropout(net)
        self.options = options

    def forward(self, x, labels):
        logits = self.net(x)
        logits = logits["out"] if isinstance(logits, dict) else logits
        weight = torch.linspace(0.5, 2, logits.shape[1], dtype=logits.dtype)
        return F.cross_entropy(logits, labels, weight, **self.options)


DENSE = {
    "smp Unet": (
        lambda: smp.Unet("resnet18", encoder_weights=None, classes=3),
        (2, 3, 64, 96),
        {},
    ),
    "torchvision LRASPP": (
        lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=3
        ),
        (2, 3, 65, 71),
        {"ignore_index": 1},
    ),
    "MONAI UNet": (
        lambda: nets.UNet(3, 1, 3, (4, 8, 16), (2, 2), num_res_units=2),
        (1, 1, 20, 24, 16),
        {"reduction": "sum", "label_smoothing": 0.1},
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_predictions_and_their_loss(name):
    make, shape, options = DENSE[name]
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (shape[0], *shape[2:]), generator=generator)
    torch.manual_seed(0)
    assert_exact(WithLoss(make(), options), rand(*shape), labels, grid=(2, 2))
