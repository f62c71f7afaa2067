"""The ResNets for large images: a stem that reduces by four, then four stages."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from .initialization import initialize_convolutions


class ResidualBlock(nn.Module):
    """A body plus its shortcut, then ReLU; the shortcut projects where the shapes differ."""

    def __init__(self, body: nn.Module, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = _conv_norm(in_channels, out_channels, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        body = nn.Sequential(
            _conv_norm(in_channels, width, 3, stride),
            nn.ReLU(inplace=True),
            _conv_norm(width, width, 3),
        )
        super().__init__(body, in_channels, width, stride)


class BottleneckBlock(ResidualBlock):
    """1x1 down to ``width``, 3x3 (which carries the stride), 1x1 up to four times ``width``."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        out_channels = width * self.expansion
        body = nn.Sequential(
            _conv_norm(in_channels, width, 1),
            nn.ReLU(inplace=True),
            _conv_norm(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _conv_norm(width, out_channels, 1),
        )
        super().__init__(body, in_channels, out_channels, stride)


def resnet18(num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """ResNet-18: images ``(N, in_channels, H, W)`` to ``(N, num_classes)``.

    The 10 layers are the stem (with its max pool), 8 basic blocks and the head.
    """
    return _resnet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def resnet50(num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """ResNet-50: images ``(N, in_channels, H, W)`` to ``(N, num_classes)``.

    The 18 layers are the stem (with its max pool), 16 bottleneck blocks and the head.
    """
    return _resnet(BottleneckBlock, (3, 4, 6, 3), num_classes, in_channels)


def resnet101(num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """ResNet-101: images ``(N, in_channels, H, W)`` to ``(N, num_classes)``.

    The 35 layers are the stem (with its max pool), 33 bottleneck blocks and the head.
    """
    return _resnet(BottleneckBlock, (3, 4, 23, 3), num_classes, in_channels)


def _resnet(
    block: type[BasicBlock] | type[BottleneckBlock],
    blocks: Sequence[int],
    num_classes: int,
    in_channels: int,
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(in_channels))
    channels, width = 64, 64
    for stage, count in enumerate(blocks, start=1):
        for index in range(1, count + 1):
            stride = 2 if stage > 1 and index == 1 else 1
            layers[f"stage{stage}_block{index}"] = block(channels, width, stride)
            channels = width * block.expansion
        width *= 2
    layers["head"] = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )
    model = nn.Sequential(layers)
    initialize_convolutions(model)
    return model


def _stem(in_channels: int) -> nn.Sequential:
    return nn.Sequential(
        _conv_norm(in_channels, 64, 7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _conv_norm(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out_channels),
    )
