"""The two cells of AmoebaNet-D: which operation reads which state, and how a cell runs."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .amoebanet_operations import (
    FactorizedReduction,
    Operation,
    avg_3x3,
    conv_1x1,
    conv_1x7_7x1,
    conv_3x3,
    max_2x2,
    max_3x3,
    none,
    relu_conv_norm,
)
from .flow import Flow, as_tuple

Read = tuple[int, Operation]


@dataclass(frozen=True)
class Recipe:
    """Each pair of operations appends a state to the two inputs; some states are concatenated."""

    pairs: tuple[tuple[Read, Read], ...]
    concatenated: tuple[int, ...]
    reduces: bool


NORMAL = Recipe(
    pairs=(
        ((1, conv_1x1), (1, max_3x3)),
        ((1, none), (0, conv_1x7_7x1)),
        ((0, conv_1x1), (0, conv_1x7_7x1)),
        ((2, max_3x3), (2, none)),
        ((1, avg_3x3), (5, conv_1x1)),
    ),
    concatenated=(0, 3, 4, 6),
    reduces=False,
)

REDUCTION = Recipe(
    pairs=(
        ((0, max_2x2), (0, max_3x3)),
        ((2, none), (1, conv_3x3)),
        ((2, conv_1x7_7x1), (2, max_3x3)),
        ((3, none), (1, max_2x2)),
        ((2, avg_3x3), (3, conv_1x1)),
    ),
    concatenated=(4, 5, 6),
    reduces=True,
)


@dataclass(frozen=True)
class Widths:
    """Channels of the two tensors a cell reads, and whether they differ by a reduction."""

    output: int
    skip: int
    reduced: bool = False

    def after(self, recipe: Recipe, channels: int) -> "Widths":
        """What the next cell reads when this one follows ``recipe`` at ``channels``."""
        return Widths(channels * len(recipe.concatenated), self.output, recipe.reduces)


class Cell(nn.Module):
    """Reads ``(output, skip)`` of the previous cell, or a lone tensor as both; returns the same.

    Both inputs are first brought to ``channels`` and to the smaller of their sizes. The skip that
    is returned is the first input as it came.
    """

    def __init__(self, recipe: Recipe, widths: Widths, channels: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.prepare_output = relu_conv_norm(widths.output, channels)
        self.prepare_skip: nn.Module = nn.Identity()
        if widths.reduced:
            self.prepare_skip = FactorizedReduction(widths.skip, channels)
        elif widths.skip != channels:
            self.prepare_skip = relu_conv_norm(widths.skip, channels)

        self.left = nn.ModuleList()
        self.right = nn.ModuleList()
        for pair in recipe.pairs:
            for side, (state, operation) in zip((self.left, self.right), pair, strict=True):
                side.append(operation(channels, 2 if recipe.reduces and state < 2 else 1))

    def forward(self, inputs: Flow) -> Flow:
        tensors = as_tuple(inputs)
        output, skip = tensors[0], tensors[-1]
        states: list[Tensor] = [self.prepare_output(output), self.prepare_skip(skip)]
        pairs = zip(self.recipe.pairs, self.left, self.right, strict=True)
        for ((i, _), (j, _)), left, right in pairs:
            states.append(left(states[i]) + right(states[j]))
        return torch.cat([states[i] for i in self.recipe.concatenated], dim=1), output
