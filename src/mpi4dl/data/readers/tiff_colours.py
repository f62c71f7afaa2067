"""What the numbers in a TIFF mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import DataError
from ..reader import Array

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _MASK, _YCBCR = 0, 1, 2, 3, 4, 6
_JPEG = {6, 7, 33003, 33004, 33005, 33007, 34712, 34892}
"""Compressions whose decoders make RGB of YCbCr."""

Meaning = Callable[[Array], Array]


def meaning(page: Any, indices: bool, name: str) -> Meaning:
    """From `(channels, h, w)` as stored to grey, RGB, or whatever channels there are.

    `indices`: numbers are not colours, and stay.
    """
    photometric, compression = int(page.photometric), int(page.compression)
    if photometric == _PALETTE and not indices:
        table = (np.asarray(page.colormap) >> 8).astype(np.uint8)
        return lambda numbers: table[:, numbers[0]]
    if photometric == _YCBCR and compression not in _JPEG:
        known = False
    else:
        known = photometric in range(5) or photometric == _YCBCR
    if not known:
        colours = getattr(page.photometric, "name", photometric)
        raise DataError(f"{name} stores its colours as {colours}: save it as RGB or grey")
    if page.dtype == bool:
        return _of_bits(1 if indices else 255, photometric == _WHITE_IS_ZERO and not indices)
    if photometric == _WHITE_IS_ZERO and not indices and page.dtype.kind == "u":
        brightest = np.iinfo(page.dtype).max
        return lambda numbers: brightest - numbers
    return lambda numbers: numbers


def _of_bits(white: int, inverted: bool) -> Meaning:
    return lambda bits: (bits != inverted).astype(np.uint8) * np.uint8(white)
