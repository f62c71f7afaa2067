"""Augmentations: drawn once for an image, from (seed, epoch, sample), and then the same for every
tile of it and for its mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .colour import Coloured, Colours
from .picture import Picture, Placed, Size, Turned

Geometry = Callable[[Picture, float], Picture]
"""Of a picture and of what fills it where it ends, another picture."""


@dataclass
class Change:
    """What was drawn for one image."""

    geometry: list[Geometry] = field(default_factory=list)
    colours: list[Colours] = field(default_factory=list)

    def image(self, picture: Picture, fill: float, scale: float) -> Picture:
        picture = self.mask(picture, fill)
        return Coloured(picture, tuple(self.colours), scale) if self.colours else picture

    def mask(self, picture: Picture, fill: float) -> Picture:
        for step in self.geometry:
            picture = step(picture, fill)
        return picture


class Augmentation(Protocol):
    def draw(self, random: np.random.Generator, change: Change) -> None:
        """Add to a change. How many numbers are drawn must not depend on the image."""
        ...


def drawn(augmentations: Sequence[Augmentation], seed: int, epoch: int, sample: int) -> Change:
    random = np.random.default_rng([seed, epoch, sample])
    change = Change()
    for augmentation in augmentations:
        augmentation.draw(random, change)
    return change


@dataclass(frozen=True)
class RandomFlip:
    """Mirrored left to right, and top to bottom, each with its probability."""

    horizontal: float = 0.5
    vertical: float = 0.5

    def draw(self, random: np.random.Generator, change: Change) -> None:
        across, down = random.random(2)
        mirrored, upside_down = bool(across < self.horizontal), bool(down < self.vertical)
        # Top to bottom is half a turn and left to right.
        quarters = 2 if upside_down else 0
        change.geometry.append(lambda p, fill: Turned(p, quarters, mirrored != upside_down))


@dataclass(frozen=True)
class RandomRotate90:
    """Turned by 0°, 90°, 180° or 270°, each as likely."""

    def draw(self, random: np.random.Generator, change: Change) -> None:
        quarters = int(random.integers(4))
        change.geometry.append(lambda p, fill: Turned(p, quarters))


@dataclass(frozen=True)
class RandomCrop:
    """A part of this size from anywhere; `padding` pixels outside of the image count as in it."""

    size: Size
    padding: int = 0

    def draw(self, random: np.random.Generator, change: Change) -> None:
        down, across = random.random(2)

        def placed(p: Picture, fill: float) -> Picture:
            top, left = (
                int(u * (n - m + 2 * self.padding + 1)) - self.padding
                if n + 2 * self.padding >= m
                else (n - m) // 2
                for u, n, m in zip((down, across), p.size, self.size, strict=True)
            )
            return Placed(p, self.size, top, left, fill)

        change.geometry.append(placed)


@dataclass(frozen=True)
class ColourJitter:
    """Brightness, contrast and saturation, each by a factor within 1 ± what is said.

    Contrast is around mid-grey, not around the image's mean, which no single tile knows.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def draw(self, random: np.random.Generator, change: Change) -> None:
        factors = 1 + random.uniform(-1, 1, 3) * (self.brightness, self.contrast, self.saturation)
        change.colours.append(Colours(*map(float, factors)))
