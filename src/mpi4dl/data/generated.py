"""Slides that are made up: tissue with nuclei and their mask, of any size, tile by tile."""

from __future__ import annotations

from pathlib import Path


def write_slide(
    image: str | Path,
    mask: str | Path | None,
    size: tuple[int, int],
    seed: int = 0,
    *,
    tile: int = 512,
    levels: int | None = None,
    compression: str | None = "jpeg",
) -> None:
    """A pyramidal tiled TIFF of tissue, and its mask (0: background, 1: nucleus)."""
    raise NotImplementedError
