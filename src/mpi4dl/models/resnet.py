"""The small-image ResNets, versions 1 and 2, three stages deep."""

from collections import OrderedDict

from torch import Tensor, nn

from .initialization import initialize_convolutions


class PostActivationCell(nn.Module):
    """Version 1: two 3x3 convolutions, then the sum with the shortcut, then ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
            nn.BatchNorm2d(out_channels),
        )
        project = stride != 1 or in_channels != out_channels
        self.shortcut = (
            nn.Conv2d(in_channels, out_channels, 1, stride) if project else nn.Identity()
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


class PreActivationCell(nn.Module):
    """Version 2: normalization and ReLU come before each convolution; the sum is left as it is."""

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        stride: int = 1,
        *,
        project: bool,
        activate_input: bool = True,
    ) -> None:
        super().__init__()
        first = nn.Conv2d(in_channels, mid_channels, 3, stride, padding=1)
        self.body = nn.Sequential(
            *(_activation(in_channels) if activate_input else ()),
            first,
            *_activation(mid_channels),
            nn.Conv2d(mid_channels, mid_channels, 3, padding=1),
            *_activation(mid_channels),
            nn.Conv2d(mid_channels, out_channels, 1),
        )
        self.shortcut = (
            nn.Conv2d(in_channels, out_channels, 1, stride) if project else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x) + self.shortcut(x)
        return y


def resnet_v1(depth: int = 74, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """ResNet version 1 of ``depth`` 6n+2: images ``(N, in_channels, H, W)`` to ``(N, classes)``.

    The 3n+2 layers are the stem, n cells in each of three stages (16, 32 and 64 channels; the
    second and third stage halve the image) and the head. Any image size will do.
    """
    cells = _cells_per_stage(depth, 6, "resnet_v1")
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(in_channels))
    width = 16
    for stage, out in enumerate((16, 32, 64), start=1):
        for cell in range(1, cells + 1):
            stride = 2 if stage > 1 and cell == 1 else 1
            layers[f"stage{stage}_cell{cell}"] = PostActivationCell(width, out, stride)
            width = out
    layers["head"] = nn.Sequential(*_classifier(width, num_classes))
    return _finished(layers)


def resnet_v2(depth: int = 110, num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """ResNet version 2 of ``depth`` 9n+2: images ``(N, in_channels, H, W)`` to ``(N, classes)``.

    The 3n+2 layers are the stem, n bottleneck cells in each of three stages (64, 128 and 256
    channels; the second and third stage halve the image) and the head. Any image size will do.
    """
    cells = _cells_per_stage(depth, 9, "resnet_v2")
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(in_channels))
    width = 16
    for stage, out in enumerate((64, 128, 256), start=1):
        mid = width
        for cell in range(1, cells + 1):
            opens_stage = cell == 1
            layers[f"stage{stage}_cell{cell}"] = PreActivationCell(
                width,
                mid,
                out,
                stride=2 if stage > 1 and opens_stage else 1,
                project=opens_stage,
                # The stem has just normalized and rectified what the first cell reads.
                activate_input=not (stage == 1 and opens_stage),
            )
            width = out
    layers["head"] = nn.Sequential(*_activation(width), *_classifier(width, num_classes))
    return _finished(layers)


def _cells_per_stage(depth: int, step: int, name: str) -> int:
    """The n of ``depth = step * n + 2``."""
    cells, rest = divmod(depth - 2, step)
    if cells >= 1 and rest == 0:
        return cells
    nearest = [step * n + 2 for n in (cells, cells + 1) if n >= 1] or [step + 2]
    valid = " or ".join(map(str, nearest))
    raise ValueError(f"{name} has depth {step}n+2 with n >= 1, not {depth}; use depth {valid}")


def _stem(in_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, 16, 3, padding=1), *_activation(16))


def _activation(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU(inplace=True)


def _classifier(channels: int, num_classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)


def _finished(layers: OrderedDict[str, nn.Module]) -> nn.Sequential:
    model = nn.Sequential(layers)
    initialize_convolutions(model)
    return model
