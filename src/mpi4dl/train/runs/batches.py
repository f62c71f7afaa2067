"""Where the batches of a run come from: the same on all ranks, each of which reads its part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ... import data as readers
from ...comm.communicator import Communicator
from ...data import FileDataset, Loader, Synthetic, cifar, image_folder, image_masks, slide_table
from ...data.dataset import Dataset
from ...errors import DataError, UsageError
from .making import checked, of_ones_own
from .reading import unknown
from .sections import KINDS, Configuration, Data

AUGMENTATIONS = ("ColourJitter", "RandomCrop", "RandomFlip", "RandomRotate90")


class Batches(Protocol):
    """Images and labels that `Trainer.step` takes, again and again."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: channels, rows, columns."""
        ...

    def __len__(self) -> int:
        """How many an epoch has."""
        ...

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Any, Any]]:
        """The batches of an epoch, from one of them on; the same on every rank."""
        ...


class Loaded:
    """Those of a loader."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.shape = (loader.dataset.channels, *loader.dataset.size)

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Any, Any]]:
        return self.loader.epoch(number, first)


class Dense(Loaded):
    """With a label for each pixel in place of the image's: is its red above 0?"""

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Any, Any]]:
        for images, _ in self.loader.epoch(number, first):
            yield images, _Mask(images)


class _Mask:
    def __init__(self, images: Any) -> None:
        self._images = images
        self.shape = (images.shape[0], *images.shape[2:])
        self.dtype = torch.int64

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        samples, *region = where
        return (self._images[(samples, slice(0, 1), *region)][:, 0] > 0).long()


class Typed:
    """Images of another type of numbers, converted as they are read."""

    def __init__(self, images: Any, dtype: torch.dtype) -> None:
        self._images = images
        self.shape, self.dtype = images.shape, dtype

    def __getitem__(self, where: Any) -> Tensor:
        return torch.as_tensor(self._images[where]).to(self.dtype)


def read_from_files(*sources: Batches | None) -> dict[str, float]:
    """What this rank has read, for its log: nothing where batches come from elsewhere."""
    found = [source.loader.reading() for source in sources if isinstance(source, Loaded)]
    read, used = sum(r.bytes_read for r in found), sum(r.bytes_used for r in found)
    if not read:
        return {}
    decoded = sum(r.bytes_decoded for r in found)
    return {
        "read_mib": read / 2**20,
        "read_amplification": decoded / used if used else 0.0,
        "waited_for_data": sum(r.waited for r in found),
    }


# ── from a configuration ─────────────────────────────────────────────────────────────────────────


def batches(
    configuration: Configuration, comm: Communicator | None = None, device: Any = None
) -> tuple[Batches, Batches | None]:
    """Of training and, if there is any, of evaluation."""
    c = configuration
    training, evaluation = datasets(c.data, c.training.seed)
    seen: dict[str, Any] = {
        "seed": c.training.seed,
        "workers": c.data.workers,
        "ahead": c.data.ahead,
    }
    seen |= {"damaged": c.data.damaged, "comm": comm, "device": device}
    kind = Dense if c.data.kind == "synthetic-segmentation" else Loaded
    augment = augmentations(c.data.augment)
    train = kind(Loader(training, c.training.batch_size, augment=augment, **seen))
    if evaluation is None:
        return train, None
    at_once = c.evaluation.batch_size or c.training.batch_size
    last = len(evaluation) % at_once
    if 0 < last < c.plan.replicas:
        raise UsageError(
            f"evaluation.batch_size {at_once} leaves {last} of {len(evaluation)} samples for the "
            f"last batch, and each of {c.plan.replicas} replicas needs one: use another"
        )
    whole = Loader(evaluation, at_once, shuffle=False, drop_last=False, **seen)
    return train, kind(whole)


def datasets(data: Data, seed: int) -> tuple[Dataset, Dataset | None]:
    """Those that are trained on, and those that are evaluated."""
    if data.kind.startswith("synthetic"):
        size = data.view.size or (64, 64)
        classes = data.count
        evaluated = Synthetic(data.evaluated, size, classes, seed + 1) if data.evaluated else None
        return Synthetic(data.samples, size, classes, seed), evaluated
    if data.kind == "cifar":
        train: Any = cifar(_said(data, "images"))
        return train, None
    if ":" in data.kind:
        made = of_ones_own(data.kind, "data.kind")(**data.arguments)
        return made if isinstance(made, tuple) else (made, None)
    if data.kind not in KINDS:
        what = unknown(f"data {data.kind!r}", data.kind, KINDS)
        raise UsageError(f"data.kind: {what}, or name your own as package.module:function")
    return _separated(data, _listed(data), seed)


def _listed(data: Data) -> FileDataset:
    path = Path(_said(data, "images"))
    more: Any = {"reader": data.reader}
    if data.kind == "folder":
        return image_folder(path, data.view, **more)
    more["mask_values"] = data.mask_values or None
    if data.kind == "masks":
        if not data.classes:
            raise UsageError("data.classes is missing: the names of what masks show, in order")
        masks = _said(data, "masks")
        return image_masks(path, masks, data.classes, data.view, **more)
    return slide_table(path, data.view, classes=data.classes or None, **more)


def _said(data: Data, name: str) -> str:
    value: str | None = getattr(data, name)
    if value is None:
        raise UsageError(f"data.{name} is missing, which data.kind {data.kind} needs")
    return value


def _separated(data: Data, everything: FileDataset, seed: int) -> tuple[Dataset, Dataset | None]:
    """By what a table says, or by chance."""
    if any(item.split for item in everything.items):
        there = {item.split for item in everything.items}
        held_out = everything.where(data.held_out) if data.held_out in there else None
        return everything.where("train"), held_out
    if data.validation == 0:
        return everything, None
    try:
        return readers.split(everything, data.validation, seed)
    except DataError as error:
        raise DataError(f"data.validation: {error}") from error


def augmentations(chosen: tuple[Any, ...]) -> list[Any]:
    """By the names of `mpi4dl.data`, with their arguments if they have any."""
    made = []
    for one in chosen:
        name, arguments = (one, {}) if isinstance(one, str) else (one.get("name"), dict(one))
        arguments.pop("name", None)
        if name not in AUGMENTATIONS:
            raise UsageError(f"data.augment: {unknown(repr(name), str(name), AUGMENTATIONS)}")
        kind = getattr(readers, name)
        arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
        checked(kind, 0, arguments, f"data.augment: {name}")
        made.append(kind(**arguments))
    return made
