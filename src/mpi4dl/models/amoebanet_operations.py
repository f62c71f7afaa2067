"""The operations AmoebaNet-D combines in its cells.

Each is a function of the number of channels, which it keeps, and the stride. At stride 2 all of
them take a size n to ceil(n / 2), so that their results can be added whatever the image size.
The first ReLU of an operation never works in place: other operations read the same state.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Operation = Callable[[int, int], nn.Module]
Pair = tuple[int, int]


class FactorizedReduction(nn.Module):
    """Halves the image by two 1x1 convolutions, one of which sees the pixels the other skips."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(in_channels, half, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(in_channels, out_channels - half, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        # The padding keeps the size, so that both results agree at odd sizes too.
        shifted = functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        y: Tensor = self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))
        return y


def relu_conv_norm(
    in_channels: int,
    out_channels: int,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    *,
    inplace: bool = False,
) -> nn.Sequential:
    """ReLU, convolution without bias, batch normalization."""
    padding = (kernel[0] // 2, kernel[1] // 2)
    return nn.Sequential(
        nn.ReLU(inplace=inplace),
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(out_channels),
    )


def none(channels: int, stride: int) -> nn.Module:
    """Identity; at stride 2 a factorized reduction."""
    return nn.Identity() if stride == 1 else FactorizedReduction(channels, channels)


def avg_3x3(channels: int, stride: int) -> nn.Module:
    """Average pool that does not count its padding."""
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def max_3x3(channels: int, stride: int) -> nn.Module:
    """Max pool."""
    return nn.MaxPool2d(3, stride, padding=1)


def max_2x2(channels: int, stride: int) -> nn.Module:
    """Rounds odd sizes up, as the 3x3 pools and the convolutions do."""
    return nn.MaxPool2d(2, stride, ceil_mode=True)


def conv_1x1(channels: int, stride: int) -> nn.Module:
    """One 1x1 convolution, which carries the stride."""
    return relu_conv_norm(channels, channels, stride=(stride, stride))


def conv_3x3(channels: int, stride: int) -> nn.Module:
    """A 3x3 convolution at a quarter of the channels."""
    narrow = channels // 4
    return nn.Sequential(
        relu_conv_norm(channels, narrow),
        relu_conv_norm(narrow, narrow, (3, 3), (stride, stride), inplace=True),
        relu_conv_norm(narrow, channels, inplace=True),
    )


def conv_1x7_7x1(channels: int, stride: int) -> nn.Module:
    """A 1x7 and a 7x1 convolution at a quarter of the channels."""
    narrow = channels // 4
    return nn.Sequential(
        relu_conv_norm(channels, narrow),
        relu_conv_norm(narrow, narrow, (1, 7), (1, stride), inplace=True),
        relu_conv_norm(narrow, narrow, (7, 1), (stride, 1), inplace=True),
        relu_conv_norm(narrow, channels, inplace=True),
    )
