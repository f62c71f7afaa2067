"""The layers of a U-Net in two or three dimensions.

Between layers travels ``(current, skip 1, ..., skip n)``: each encoder adds a skip at the end,
each decoder takes one from there.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from .flow import Flow, as_tuple

Norm = Literal["batch", "instance", "group", "none"]
Upsampling = Literal["transposed", "interpolate"]

CONV: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
UPCONV: dict[int, type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]] = {
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
POOL: dict[int, type[nn.MaxPool2d] | type[nn.MaxPool3d]] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
BATCH_NORM: dict[int, type[nn.BatchNorm2d] | type[nn.BatchNorm3d]] = {
    2: nn.BatchNorm2d,
    3: nn.BatchNorm3d,
}
INSTANCE_NORM: dict[int, type[nn.InstanceNorm2d] | type[nn.InstanceNorm3d]] = {
    2: nn.InstanceNorm2d,
    3: nn.InstanceNorm3d,
}
LINEAR_MODE = {2: "bilinear", 3: "trilinear"}


class Encoder(nn.Module):
    """Two convolutions, whose result is kept as a skip, then a max pool that halves the image."""

    def __init__(self, dims: int, in_channels: int, out_channels: int, norm: Norm) -> None:
        super().__init__()
        self.convs = double_conv(dims, in_channels, out_channels, norm)
        self.pool = POOL[dims](2)

    def forward(self, inputs: Flow) -> Flow:
        x, *skips = as_tuple(inputs)
        skip = self.convs(x)
        return self.pool(skip), *skips, skip


class Bottleneck(nn.Module):
    """Two convolutions at the smallest size; the skips pass by."""

    def __init__(self, dims: int, in_channels: int, out_channels: int, norm: Norm) -> None:
        super().__init__()
        self.convs = double_conv(dims, in_channels, out_channels, norm)

    def forward(self, inputs: Flow) -> Flow:
        x, *skips = as_tuple(inputs)
        return self.convs(x), *skips


class Decoder(nn.Module):
    """Doubles the image, joins the newest skip to it, two convolutions.

    The last decoder has no skip to hand on and returns a lone tensor.
    """

    def __init__(
        self, dims: int, in_channels: int, out_channels: int, norm: Norm, upsampling: Upsampling
    ) -> None:
        super().__init__()
        self.up = doubling(dims, in_channels, out_channels, upsampling)
        self.convs = double_conv(dims, 2 * out_channels, out_channels, norm)

    def forward(self, inputs: Flow) -> Flow:
        x, *older, skip = as_tuple(inputs)
        x = pad_to(self.up(x), skip.shape[2:])
        x = self.convs(torch.cat([skip, x], dim=1))
        return (x, *older) if older else x


def double_conv(dims: int, in_channels: int, out_channels: int, norm: Norm) -> nn.Sequential:
    """Twice: 3x3 (or 3x3x3) convolution, normalization, ReLU. The size stays."""
    layers: list[nn.Module] = []
    for channels in (in_channels, out_channels):
        bias = norm == "none"
        layers.append(CONV[dims](channels, out_channels, 3, padding=1, bias=bias))
        layers += normalization(dims, out_channels, norm)
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def normalization(dims: int, channels: int, norm: Norm) -> list[nn.Module]:
    """The normalization by its name, as a list of one module or none."""
    if norm == "batch":
        return [BATCH_NORM[dims](channels)]
    if norm == "instance":
        return [INSTANCE_NORM[dims](channels, affine=True)]
    if norm == "group":
        return [nn.GroupNorm(math.gcd(8, channels), channels)]
    return []


def doubling(dims: int, in_channels: int, out_channels: int, upsampling: Upsampling) -> nn.Module:
    """Twice the size at ``out_channels``."""
    if upsampling == "transposed":
        return UPCONV[dims](in_channels, out_channels, 2, stride=2)
    # A 1x1 convolution and an interpolation may change places: first is where it costs least.
    return nn.Sequential(
        CONV[dims](in_channels, out_channels, 1),
        nn.Upsample(scale_factor=2, mode=LINEAR_MODE[dims], align_corners=False),
    )


def pad_to(x: Tensor, size: torch.Size) -> Tensor:
    """Append the zeros that halving and doubling an odd size left out (at most one a dimension)."""
    missing = [want - have for want, have in zip(size, x.shape[2:], strict=True)]
    if not any(missing):
        return x
    # functional.pad counts dimensions from the last.
    return functional.pad(x, [n for after in reversed(missing) for n in (0, after)])
