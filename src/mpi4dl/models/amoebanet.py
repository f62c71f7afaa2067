"""AmoebaNet-D, the evolved classifier that pipeline papers measure."""

from collections import OrderedDict

from torch import Tensor, nn

from .amoebanet_cells import NORMAL, REDUCTION, Cell, Recipe, Widths
from .flow import Flow, as_tuple


class Stem(nn.Module):
    """ReLU, a 3x3 convolution that halves the image, batch normalization."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(self.relu(x)))
        return y


class Classify(nn.Module):
    """Global average pool and linear layer on the output; the skip ends here."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(in_channels, num_classes)

    def forward(self, inputs: Flow) -> Tensor:
        output = as_tuple(inputs)[0]
        y: Tensor = self.linear(self.pool(output).flatten(1))
        return y


def amoebanet_d(
    num_layers: int = 18, num_filters: int = 416, num_classes: int = 10, in_channels: int = 3
) -> nn.Sequential:
    """AmoebaNet-D: images ``(N, in_channels, H, W)`` to ``(N, num_classes)``.

    The ``num_layers + 6`` layers are three stems, ``num_layers`` normal cells in three equal
    groups, a reduction cell between the groups, and the classifier. From the second stem on,
    layers pass two tensors ``(output, skip)``. Any image size will do. ``num_layers`` must be a
    multiple of 3 and ``num_filters`` of 8.
    """
    _check_multiple("num_layers", num_layers, 3)
    _check_multiple("num_filters", num_filters, 8)

    channels = num_filters // 4
    widths = Widths(channels, channels)
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem1=Stem(in_channels, channels))
    for name, recipe in _cells(num_layers // 3):
        if recipe.reduces:
            channels *= 2
        layers[name] = Cell(recipe, widths, channels)
        widths = widths.after(recipe, channels)
    layers["classify"] = Classify(widths.output, num_classes)
    return nn.Sequential(layers)


def _cells(group: int) -> list[tuple[str, Recipe]]:
    """Name and recipe of every cell between the first stem and the classifier."""
    cells = [("stem2", REDUCTION), ("stem3", REDUCTION)]
    for number in range(1, 4):
        if number > 1:
            cells.append((f"reduction{number - 1}", REDUCTION))
        cells += [(f"group{number}_cell{cell}", NORMAL) for cell in range(1, group + 1)]
    return cells


def _check_multiple(name: str, value: int, factor: int) -> None:
    if value >= factor and value % factor == 0:
        return
    below = value // factor * factor
    nearest = f"{below} or {below + factor}" if below >= factor else f"{factor}"
    raise ValueError(
        f"amoebanet_d needs {name} to be a positive multiple of {factor}, not {value}; "
        f"use {nearest}"
    )
