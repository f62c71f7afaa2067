"""Small pictures of large images: every rank gives every so many pixels of what it has."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...comm.communicator import Communicator
from ...comm.objects import shared
from ...geometry import Box
from ...pipeline import Plan, StageKind
from ...spatial.tile import Tile, alias

LARGEST = 256
"""Pixels of the longer side."""

Part = tuple[Tensor, tuple[int, int]]
"""Some pixels of a thumbnail, and where they are in it."""


def stride_for(size: Sequence[int]) -> int:
    return max(1, -(-max(size) // LARGEST))


def boxes(plan: Plan, size: tuple[int, int]) -> list[Box | None]:
    """Which pixels of an image each rank has in the first stage; None: the rank is in others."""
    found: list[Box | None] = [None] * plan.world_size
    for replica in range(plan.mesh.replicas):
        for direction in range(plan.mesh.directions):
            ranks = plan.mesh.ranks(replica, direction, 0)
            spatial = plan.kind(0) is StageKind.SPATIAL
            cut = plan.layout(0, (1, *size)).boxes if spatial else ()
            for place, rank in enumerate(ranks):
                found[rank] = Box(cut[place].intervals[1:]) if spatial else Box.full(size)
    return found


def of_array(images: Any, sample: int, box: Box | None, stride: int) -> list[Part]:
    """Of images as `Trainer.step` takes them: this rank reads its own box of them."""
    if box is None or box.empty:
        return []
    rows, columns = (slice(i.start, i.stop) for i in box)
    channels = slice(0, int(images.shape[1]))
    pixels = torch.as_tensor(images[slice(sample, sample + 1), channels, rows, columns])[0]
    return [strided(pixels, box, stride)]


def of_tile(values: Tensor, sample: int, stride: int, first: bool) -> list[Part]:
    """Of predictions or labels (N, H, W): tiles, or what all ranks of a stage have alike."""
    if isinstance(values, Tile):
        placement, local = values.placement, alias(values)
        axes = {dim: placement.box[axis] for axis, dim in enumerate(placement.dims)}
        whole = Box.full(values.shape).intervals
        box = Box(tuple(axes.get(dim - 3, whole[dim]) for dim in range(3)))
        if not box[0].start <= sample < box[0].stop or box.empty:
            return []
        return [strided(local[sample - box[0].start][None], Box(box.intervals[1:]), stride)]
    return [strided(values[sample][None], Box.full(values.shape[1:]), stride)] if first else []


def strided(pixels: Tensor, box: Box, stride: int) -> Part:
    """Those whose place in the whole image is a multiple of the stride."""
    row, column = (-i.start % stride for i in box)
    place = tuple((i.start + skip) // stride for i, skip in zip(box, (row, column), strict=True))
    return pixels[..., row::stride, column::stride].detach().cpu(), (place[0], place[1])


def assembled(
    parts: Sequence[Part], size: Sequence[int], stride: int, world: Communicator, device: Any
) -> Tensor | None:
    """The thumbnail (C, rows, columns), on every rank. None if nobody has any of it. Collective."""
    everyone = [part for own in shared(list(parts), world, device) for part in own]
    if not everyone:
        return None
    rows, columns = (-(-n // stride) for n in size)
    whole = torch.zeros(len(everyone[0][0]), rows, columns, dtype=everyone[0][0].dtype)
    for pixels, (row, column) in everyone:
        whole[:, row : row + pixels.shape[-2], column : column + pixels.shape[-1]] = pixels
    return whole


def shown(pixels: Tensor) -> Tensor:
    """Three channels from 0 to 1, whatever the range was."""
    picture = pixels.float()[:3]
    low, high = float(picture.min()), float(picture.max())
    picture = (picture - low) / (high - low) if high > low else torch.zeros_like(picture)
    return picture if len(picture) == 3 else picture[:1].expand(3, -1, -1)


def write_picture(file: Path, pixels: Tensor) -> None:
    """(3, H, W) from 0 to 1 as a PNG; without Pillow there is none."""
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image

    array = (pixels.clamp(0, 1) * 255).round().byte().movedim(0, -1).contiguous().numpy()
    Image.fromarray(array).save(file)
