"""The images of a run: which ones each step has, the same on all ranks."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, UsageError
from .files import CIFAR_SIZE, Cifar, Dataset, PictureFolder, Selection
from .synthetic import SyntheticImages, synthetic_labels

SYNTHETIC_STEPS = 10
"""Of an epoch, as the original has them."""


class Synthetic:
    steps = SYNTHETIC_STEPS

    def __init__(self, options: Namespace, samples: int) -> None:
        self._options, self._samples = options, samples

    def batch(self, step: int) -> tuple[Any, Tensor]:
        o, first = self._options, step * self._samples
        images = SyntheticImages(self._samples, o.image_size, first, o.seed)
        return images, synthetic_labels(self._samples, o.num_classes, first, o.seed)


class Stored:
    """A data set, shuffled anew in each epoch. What is left over at the end of one is left out."""

    def __init__(self, dataset: Dataset, options: Namespace, samples: int) -> None:
        self._dataset, self._options, self._samples = dataset, options, samples
        self.steps = len(dataset.labels) // samples
        if self.steps == 0:
            raise DataError(
                f"--datapath {options.datapath} has {len(dataset.labels)} images, and a step takes "
                f"{samples}: use a smaller --batch-size"
            )

    def batch(self, step: int) -> tuple[Any, Tensor]:
        epoch, place = divmod(step, self.steps)
        generator = torch.Generator().manual_seed(self._options.seed + epoch)
        order = torch.randperm(len(self._dataset.labels), generator=generator)
        numbers = order[place * self._samples : (place + 1) * self._samples]
        o = self._options
        images = Selection(self._dataset, numbers, o.image_size, o.num_workers)
        return images, self._dataset.labels[numbers]


def source(options: Namespace, samples: int) -> Synthetic | Stored:
    """What `--app` names; reads only as much as shows that it is there."""
    if options.app == 3:
        return Synthetic(options, samples)
    path = Path(options.datapath)
    if options.app == 2:
        if options.image_size != CIFAR_SIZE:
            raise UsageError(
                f"CIFAR-10 has images of {CIFAR_SIZE}×{CIFAR_SIZE}, and --image-size is "
                f"{options.image_size}: use --image-size {CIFAR_SIZE}, or --app 3"
            )
        if options.num_classes < 10:
            raise UsageError(
                f"CIFAR-10 has 10 classes, and --num-classes is {options.num_classes}: use "
                "--num-classes 10"
            )
        return Stored(Cifar(path), options, samples)
    folder = PictureFolder(path, options.image_size, options.num_classes)
    return Stored(folder, options, samples)
