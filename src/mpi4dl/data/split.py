"""Training and validation samples."""

from __future__ import annotations

from .files import FileDataset


def split(
    dataset: FileDataset, validation: float, seed: int = 0
) -> tuple[FileDataset, FileDataset]:
    """Training and validation samples, by chance from a seed; groups stay together."""
    raise NotImplementedError
