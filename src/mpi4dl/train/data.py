"""The images of a run: which ones each step has, the same on all ranks."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from ..data import Loader, Synthetic, View, cifar, image_folder, slide_table
from ..data.cifar import CIFAR_SIZE
from ..data.dataset import Dataset
from ..errors import DataError, UsageError

SYNTHETIC_STEPS = 10
"""Of an epoch, as the original has them."""


class Source:
    """Batches by the number of their step. Those of a data set begin again when it is used up, in
    another order; what is left over at its end is left out."""

    def __init__(self, loader: Loader, steps: int) -> None:
        self._loader, self.steps = loader, steps

    def batch(self, step: int) -> tuple[Any, Any]:
        return self._loader.batch(*divmod(step, len(self._loader)))


def source(options: Namespace, samples: int) -> Source:
    """What `--app` names; reads only as much as shows that it is there."""
    if options.app == 3:
        return _synthetic(options, samples)
    try:
        dataset = _cifar(options) if options.app == 2 else _pictures(options)
    except DataError as error:
        said = str(error)  # which begins with a path, this one or one in it
        raise DataError(
            f"--datapath {said}" if said.startswith(options.datapath) else said
        ) from error
    count = len(dataset)
    if count < samples:
        raise DataError(
            f"--datapath {options.datapath} has {count} images, and a step takes {samples}: use a "
            "smaller --batch-size"
        )
    loader = Loader(dataset, samples, seed=options.seed, workers=options.num_workers)
    return Source(loader, len(loader))


def _synthetic(options: Namespace, samples: int) -> Source:
    """As many as there are steps: no image comes twice."""
    steps = options.warmup + (options.steps or SYNTHETIC_STEPS) * options.num_epochs
    size = (options.image_size, options.image_size)
    dataset = Synthetic(steps * samples, size, options.num_classes, options.seed)
    return Source(Loader(dataset, samples, shuffle=False), SYNTHETIC_STEPS)


def _cifar(options: Namespace) -> Dataset:
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
    return cifar(options.datapath)


def _pictures(options: Namespace) -> Dataset:
    path = Path(options.datapath)
    size = (options.image_size, options.image_size)
    view = View(size=size, fit="resize", level="fit")
    listed = slide_table if path.suffix == ".csv" else image_folder
    dataset = listed(path, view)
    if len(dataset.classes) > options.num_classes:
        raise DataError(
            f"{path} has {len(dataset.classes)} classes, and --num-classes is "
            f"{options.num_classes}: use --num-classes {len(dataset.classes)}"
        )
    dataset.check(0)
    return dataset
