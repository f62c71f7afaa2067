"""Pixels that change without their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..geometry import Box
from .picture import Picture, Size
from .reader import Array

_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Colours:
    """Factors, of which 1 changes nothing."""

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0

    def __call__(self, pixels: Array, scale: float) -> Array:
        """Of floating-point pixels between 0 and `scale`, such ones again."""
        pixels = pixels * np.float32(self.brightness)
        middle = np.float32(scale / 2)
        pixels = (pixels - middle) * np.float32(self.contrast) + middle
        if len(pixels) == 3:
            r, g, b = (np.float32(w) for w in _GREY)
            grey = r * pixels[0] + g * pixels[1] + b * pixels[2]
            pixels = (pixels - grey) * np.float32(self.saturation) + grey
        return pixels.clip(0, np.float32(scale))


@dataclass(frozen=True)
class Coloured:
    below: Picture
    colours: tuple[Colours, ...]
    scale: float
    """The brightest value: 255 for bytes."""

    @property
    def size(self) -> Size:
        return self.below.size

    def read(self, box: Box) -> Array:
        pixels = self.below.read(box).astype(np.float32)
        for colours in self.colours:
            pixels = colours(pixels, self.scale)
        return pixels
