"""`View`: how images of a data set become samples of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import DataError
from .picture import Picture, Placed, Size
from .resampling import Resized

FITS = ("exact", "crop", "pad", "resize")


@dataclass(frozen=True)
class View:
    """The resolution that is read, the size that samples have, and how pixels become numbers.

    * `level` of a pyramid, 0 is the finest; or `fit`: of each image, the coarsest level that is at
      least as large as `size`. Or `downsample`: the coarsest level that is fine enough for it,
      resized by what is left. None of them: the finest level.
    * `size` of every sample, rows and columns; None: that of the images, which must be one.
    * `fit`, of images that have another size: `exact` refuses them; `crop` keeps the middle, and
      pads what is smaller; `pad` pads, and refuses what is larger; `resize` resizes (bilinear with
      antialiasing; masks: the nearest pixel).
    * `fill` is what is around images (in the file's values: 255 is white), `mask_fill` what is
      around masks (such as -100, which PyTorch's losses ignore).
    * `channels` of a sample: grey images become three equal channels, an alpha channel is left out.
    * `mean` and `std` of a channel, where the brightest value of integer images counts as 1. By
      default integers become -1 … 1, and floating-point images stay as they are.
    """

    size: Size | None = None
    fit: Literal["exact", "crop", "pad", "resize"] = "exact"
    level: int | Literal["fit"] | None = None
    downsample: float | None = None
    fill: float = 0
    mask_fill: int = 0
    channels: int | None = 3
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise DataError(f"fit is {self.fit!r}; it must be one of {', '.join(FITS)}")
        if self.level is not None and self.downsample is not None:
            raise DataError("give either a level or a downsample, not both")
        if self.downsample is not None and self.downsample < 1:
            raise DataError(f"downsample is {self.downsample}; it must be at least 1")
        if self.level == "fit" and self.size is None:
            raise DataError("level='fit' is for a size, and none is given")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, self.channels or len(values)):
                raise DataError(
                    f"{name} has {len(values)} numbers, and samples have {self.channels} channels"
                )
        if self.std is not None and not all(x > 0 for x in self.std):
            raise DataError(f"std is {tuple(self.std)}; all of it must be above 0")

    def fitted(self, picture: Picture, size: Size, fill: float, smooth: bool, name: str) -> Picture:
        """The picture at the size of the samples; `name` is for messages."""
        if picture.size == size:
            return picture
        if self.fit == "resize":
            return Resized(picture, size, smooth)
        (rows, columns), (height, width) = picture.size, size
        larger = rows > height or columns > width
        if self.fit == "exact" or (self.fit == "pad" and larger):
            remedy = "crop or resize" if larger else "pad, crop or resize"
            raise DataError(
                f"{name} has {rows}×{columns} pixels, and samples have {height}×{width}: "
                f"use fit={remedy}, or another size"
            )
        return Placed(picture, size, (rows - height) // 2, (columns - width) // 2, fill)
