"""Data sets from folders and tables."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from ..errors import DataError
from .files import FileDataset, Item
from .opening import is_image
from .view import View


def image_folder(
    path: str | Path, view: View | None = None, *, reader: str | None = None
) -> FileDataset:
    """A folder for each class, with images of any format in it: `path/benign/1.svs`."""
    path = Path(path)
    folders = sorted(f for f in path.iterdir() if f.is_dir()) if path.is_dir() else []
    found = {folder.name: images_in(folder) for folder in folders}
    if not any(found.values()):
        raise DataError(
            f"{listing(path)}; there must be a folder of images for each class, such as "
            f"{path}/benign/1.png and {path}/malignant/1.png"
        )
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise DataError(f"the class {empty[0]!r} in {path} has no pictures: remove its folder")
    items = [Item(f, label) for label, files in enumerate(found.values()) for f in files]
    return FileDataset(items, list(found), view, reader=reader)


def image_masks(
    images: str | Path,
    masks: str | Path,
    classes: Sequence[str],
    view: View | None = None,
    *,
    mask_values: Sequence[int] | None = None,
    mask_ignore: int | None = None,
    reader: str | None = None,
) -> FileDataset:
    """A folder of images, and one of masks that have the same names but for their suffixes."""
    images, masks = Path(images), Path(masks)
    for folder in (images, masks):
        if not folder.is_dir() or not images_in(folder):
            raise DataError(f"{listing(folder)}; there must be images and masks")
    there = {_stem(file, masks): file for file in images_in(masks)}
    items = []
    for file in images_in(images):
        mask = there.get(_stem(file, images))
        if mask is None:
            raise DataError(
                f"{file} has no mask: {masks} must have a file of the same name, but for the suffix"
            )
        items.append(Item(file, mask=mask))
    return FileDataset(
        items, classes, view, mask_values=mask_values, mask_ignore=mask_ignore, reader=reader
    )


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
    mask_ignore: int | None = None,
    reader: str | None = None,
) -> FileDataset:
    """A CSV file with a line for each image: its path, and its label or the path of its mask.

    Paths are relative to the table. Columns have the names that are given; `split` and `group` may
    be missing. Classes are in alphabetical order (numbers in theirs) unless they are given; with
    masks they must be.
    """
    path = Path(path)
    lines = _lines(path)
    columns = set(lines[0])
    target = label if label in columns else mask
    missing = [name for name in (image, target) if name not in columns]
    if missing:
        raise DataError(
            f"{path} has the columns {', '.join(lines[0])}, and there must be {image!r} and "
            f"{label!r} or {mask!r}: name the columns that are meant"
        )
    if target == label:
        names = list(classes) if classes is not None else _in_order({row[label] for row in lines})
    elif classes is None:
        raise DataError(f"{path} has masks: say which classes they have")
    else:
        names = list(classes)
    items = []
    for row in lines:
        file = path.parent / row[image]
        if target == label and row[label] not in names:
            raise DataError(
                f"{path} has the label {row[label]!r} of {file}, which is none of the classes "
                f"{', '.join(names)}"
            )
        items.append(
            Item(
                file,
                label=names.index(row[label]) if target == label else None,
                mask=path.parent / row[mask] if target == mask else None,
                split=row.get(split) or "",
                group=row.get(group) or "",
            )
        )
    return FileDataset(
        items, names, view, mask_values=mask_values, mask_ignore=mask_ignore, reader=reader
    )


def images_in(folder: Path) -> list[Path]:
    """All that are named like images, at any depth; a Zarr is one of them."""
    found: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if is_image(entry):
            found.append(entry)
        elif entry.is_dir():
            found += images_in(entry)
    return found


def listing(path: Path) -> str:
    """What is there instead of data."""
    if not path.exists():
        return f"{path} does not exist"
    if not path.is_dir():
        return f"{path} is a file, not a folder"
    found = "neither pictures nor records" if any(path.iterdir()) else "nothing"
    return f"{path} has {found} in it"


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"{path} is no file; a table of images is a CSV file")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file, restval=""))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a CSV file: {error}") from error
    if not lines:
        raise DataError(f"{path} has no lines after its first, which names the columns")
    return lines


def _in_order(labels: set[str]) -> list[str]:
    return sorted(labels, key=lambda text: (0, int(text), "") if text.isdecimal() else (1, 0, text))


def _stem(file: Path, folder: Path) -> str:
    """Without suffixes, `.ome.tiff` included."""
    return str(file.relative_to(folder).with_suffix("")).removesuffix(".ome")
