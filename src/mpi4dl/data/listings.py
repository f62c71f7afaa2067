"""Data sets from folders and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .files import FileDataset
from .view import View


def image_folder(
    path: str | Path, view: View | None = None, *, reader: str | None = None
) -> FileDataset:
    """A folder for each class, with images of any format in it: `path/benign/1.svs`."""
    raise NotImplementedError


def slide_table(
    path: str | Path,
    view: View | None = None,
    *,
    image: str = "path",
    label: str = "label",
    mask: str = "mask",
    split: str = "split",
    group: str = "group",
    classes: Sequence[str] | None = None,
    mask_values: Sequence[int] | None = None,
    reader: str | None = None,
) -> FileDataset:
    """A CSV file with a line for each image: its path, and its label or the path of its mask.

    Paths are relative to the table. Columns have the names that are given; `split` and `group` may
    be missing. Classes are in alphabetical order (numbers in theirs) unless they are given.
    """
    raise NotImplementedError


def image_masks(
    images: str | Path,
    masks: str | Path,
    classes: Sequence[str],
    view: View | None = None,
    *,
    mask_values: Sequence[int] | None = None,
    reader: str | None = None,
) -> FileDataset:
    """A folder of images, and one of masks that have the same names but for their suffixes."""
    raise NotImplementedError
