"""Small models for whole training steps: each has something that a pipeline could get wrong."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


def plain() -> nn.Sequential:
    """Ten layers that write in place, stride, and normalise."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *_head(8),
    )


class Fork(nn.Module):
    """Gives a dictionary of tuples: tensors, one of them twice, and things that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Conv2d(3, 6, 5, stride=2, padding=2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        left = self.left(x)
        offset = left.mean()
        return {"left": (left, (0.5, None)), "right": [self.right(x).relu()], "offset": offset}


class Along(nn.Module):
    """Works on one branch, and passes the others on as they are."""

    def __init__(self, branch: str) -> None:
        super().__init__()
        self.branch = branch
        channels = 4 if branch == "left" else 6
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        left, constants = value["left"]
        (right,) = value["right"]
        if self.branch == "left":
            left = self.norm(self.conv(left)).relu_()
        else:
            right = right + self.norm(self.conv(right))
        # A mask of whole numbers travels, too, and wants no gradient.
        mask = (left.detach() > 0).to(torch.int64)
        return {**value, "left": (left, constants), "right": [right], "mask": mask}


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, CLASSES)

    def forward(self, value: dict[str, Any]) -> Tensor:
        left, (factor, nothing) = value["left"]
        (right,) = value["right"]
        assert nothing is None
        left = left * value["mask"] * factor + value["offset"]
        pooled = [F.adaptive_avg_pool2d(x, 1).flatten(1) for x in (left, right)]
        return self.linear(torch.cat(pooled, 1))


def branches() -> nn.Sequential:
    return nn.Sequential(Fork(), Along("left"), Along("right"), Along("left"), Join())


class Skips(nn.Module):
    """No sequence: values skip over split points, and a parameter belongs to the model itself."""

    split_points = ("down", "middle", "up")

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.down = nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.up = nn.ConvTranspose2d(6, 6, 2, stride=2)
        self.scale = nn.Parameter(torch.full((6, 1, 1), 0.7))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.down(a)
        c = self.middle(b).relu() + b
        d = self.up(c)[..., : a.shape[-2], : a.shape[-1]] * self.scale + a
        return self.last(d.mean((-1, -2)))


def twice() -> nn.Sequential:
    """One normalisation is called twice in a stage, and so is a convolution: shared weights."""
    conv, norm = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), conv, norm, nn.ReLU(), conv, norm, nn.ReLU(), *_head(6)
    )


def averaging() -> nn.Sequential:
    """Running statistics that are the mean of everything seen, and some that are not kept."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6, momentum=None),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.BatchNorm2d(6, track_running_stats=False),
        nn.ReLU(),
        nn.GroupNorm(2, 6),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        *_head(6),
    )


def frozen() -> nn.Sequential:
    """What a fine-tuner does: the first layers do not learn, one norm is in evaluation mode."""
    model = plain()
    for parameter in [*model[0].parameters(), *model[3].parameters()]:
        parameter.requires_grad_(False)
    model[4].eval()
    return model


def frozen_in_the_middle() -> nn.Sequential:
    """A norm in the middle and the head do not learn, and gradients pass all the same."""
    model = plain()
    for parameter in [*model[4].parameters(), *model[9].parameters()]:
        parameter.requires_grad_(False)
    return model


class Halved(nn.Module):
    """A hook on an activation changes its gradient; one on another looks only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 0.5)
        return y.tanh()


def hooked() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), Halved(), nn.BatchNorm2d(6), Halved(), *_head(6)
    )


class Nested(nn.Module):
    """Takes images and a number for each: nested inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.meta = nn.Linear(2, 6)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        y: Tensor = self.conv(inputs["image"]) + self.meta(inputs["meta"])[..., None, None]
        return y


def nested() -> nn.Sequential:
    return nn.Sequential(Nested(), nn.BatchNorm2d(6), nn.ReLU(), *_head(6))


def segmenter() -> nn.Sequential:
    """A label for every pixel, at the size of the image."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(6, 6, 5, padding=2, padding_mode="reflect"),
        nn.BatchNorm2d(6),
        nn.Conv2d(6, CLASSES, 1),
    )
