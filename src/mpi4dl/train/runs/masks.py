"""Masks that no rank holds whole, written region by region.

Zarr    every rank writes its own boxes, cut where chunks end: no two ranks write one chunk
TIFF    a file has one writer: ranks send it row after row of tiles, and it keeps one row
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...comm.communicator import Communicator
from ...comm.objects import shared
from ...errors import UsageError
from ...geometry import Box, Interval
from ...spatial.tile import Tile, alias

FORMATS = ("tiff", "zarr")


@dataclass(frozen=True)
class Mask:
    """A file that is written by all ranks."""

    file: Path
    size: tuple[int, int]
    boxes: list[Box]
    """What each rank has of it."""
    chunk: int


@dataclass(frozen=True)
class Region:
    """What this rank has of a mask (H, W)."""

    size: tuple[int, int]
    box: Box
    pixels: Tensor


def region_of(classes: Tensor, comm_rank: int, chunk: int) -> Region | None:
    """Of (1, H, W): a tile's region ends where chunks end. None: another rank has it all."""
    size = (int(classes.shape[-2]), int(classes.shape[-1]))
    if not isinstance(classes, Tile):
        return None if comm_rank else Region(size, Box.full(size), classes[0].byte())
    layout, dims = classes.layout, classes.placement.dims
    for axis, dim in enumerate(dims):
        if dim in (-1, -2):
            layout = layout.remap(axis, layout.size[axis], lambda cut: round(cut / chunk) * chunk)
    aligned = classes.redistribute(layout)
    where = {dim: aligned.placement.box[axis] for axis, dim in enumerate(aligned.placement.dims)}
    whole = Box.full(size)
    box = Box(tuple(where.get(dim - 2, whole[dim]) for dim in range(2)))
    sample = where.get(-3, Interval(0, 1))
    if sample.empty or box.empty:
        return None
    return Region(size, box, alias(aligned)[0].byte())


def write_mask(
    file: Path, kind: str, region: Region | None, chunk: int, world: Communicator, device: Any
) -> None:
    """Collective."""
    held = shared(None if region is None else (region.size, region.box), world, device)
    there = [one for one in held if one is not None]
    size = there[0][0]
    boxes = [Box.of((0, 0), (0, 0)) if one is None else one[1] for one in held]
    write = _write_zarr if kind == "zarr" else _write_tiff
    write(Mask(file, size, boxes, chunk), region, world)


def check_format(kind: str) -> None:
    if kind not in FORMATS:
        raise UsageError(f"--format is {kind}; it must be one of {', '.join(FORMATS)}")
    package = {"tiff": "tifffile", "zarr": "zarr"}[kind]
    try:
        __import__(package)
    except ImportError as error:
        raise UsageError(f"--format {kind} needs {package}: pip install {package}") from error


def _write_zarr(mask: Mask, region: Region | None, world: Communicator) -> None:
    import zarr

    library: Any = zarr
    if world.rank == 0:
        library.create_array(
            store=str(mask.file),
            shape=mask.size,
            chunks=(mask.chunk, mask.chunk),
            dtype="uint8",
            overwrite=True,
        )
    together(world)
    if region is not None:
        array = library.open_array(str(mask.file), mode="r+")
        rows, columns = (slice(i.start, i.stop) for i in region.box)
        array[rows, columns] = region.pixels.cpu().numpy()
    together(world)


def _write_tiff(mask: Mask, region: Region | None, world: Communicator) -> None:
    size, chunk = mask.size, mask.chunk
    rows = [Interval(top, min(top + chunk, size[0])) for top in range(0, size[0], chunk)]
    if world.rank:
        for row in rows:
            part = _part(region, row)
            if part is not None:
                world.start([(0, part)], []).wait()
        return
    import tifffile

    def collected() -> Iterator[np.ndarray[Any, Any]]:
        for row in rows:
            yield from _tiles(_gathered(row, mask, region, world), chunk)

    library: Any = tifffile
    library.imwrite(
        mask.file,
        collected(),
        shape=size,
        dtype="uint8",
        tile=(chunk, chunk),
        compression="zlib",
        photometric="minisblack",
        bigtiff=size[0] * size[1] > 2**31,
    )


def _part(region: Region | None, row: Interval) -> Tensor | None:
    """What this rank has of some rows."""
    if region is None:
        return None
    rows = region.box[0].intersect(row)
    if rows.empty or region.box.empty:
        return None
    return region.pixels[rows.slice_in(region.box[0])].contiguous()


def _gathered(row: Interval, mask: Mask, region: Region | None, world: Communicator) -> Tensor:
    whole = torch.zeros(row.size, mask.size[1], dtype=torch.uint8)
    for rank, box in enumerate(mask.boxes):
        rows = box[0].intersect(row)
        if rows.empty or box.empty:
            continue
        if rank == world.rank:
            part = _part(region, row)
            assert part is not None
        else:
            device = region.pixels.device if region is not None else None
            part = torch.empty(rows.size, box[1].size, dtype=torch.uint8, device=device)
            world.start([], [(rank, part)]).wait()
        whole[rows.slice_in(row), box[1].start : box[1].stop] = part.cpu()
    return whole


def _tiles(row: Tensor, chunk: int) -> Iterator[np.ndarray[Any, Any]]:
    """All of one size, as the format wants them."""
    for left in range(0, row.shape[1], chunk):
        tile = torch.zeros(chunk, chunk, dtype=torch.uint8)
        part = row[:, left : left + chunk]
        tile[: part.shape[0], : part.shape[1]] = part
        yield tile.numpy()


def together(world: Communicator) -> None:
    """Until every rank is here. Collective."""
    world.all_gather(torch.zeros(1))
