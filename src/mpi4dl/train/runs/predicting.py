"""Predictions of a trained model, for images of any size, each spread over all ranks."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...comm.communicator import Communicator
from ...comm.objects import shared
from ...data import FileDataset, Item, Loader, View
from ...errors import UsageError
from ...pipeline import Trainer
from ..checkpoints import read_weights
from ..device import device_for
from .batches import Typed
from .making import built
from .masks import region_of, write_mask
from .sections import Configuration
from .trained_weights import TrainedWeights, checkpoint_of

SCORES = "scores.csv"


@dataclass(frozen=True)
class Wanted:
    """What is to be predicted, and where to."""

    images: tuple[Path, ...]
    output: Path
    weights: Path | None = None
    """A safetensors file; else those of the run's best or last checkpoint."""
    format: str = "tiff"
    chunk: int = 512
    """Pixels of a side of a mask's tiles, or chunks."""


def predict(
    configuration: Configuration, wanted: Wanted, comm: Communicator, model: Any = None
) -> list[Path]:
    """Masks, or a table of the scores of classes: what was written. Collective."""
    c = replace(configuration, plan=replace(configuration.plan, replicas=1))
    device = device_for(c.training.device, comm)
    trainer = Trainer(model or built(c), c.plan, device=device)
    _load(trainer, c, wanted)
    wanted.output.mkdir(parents=True, exist_ok=True)
    written, rows = [], []
    for image in wanted.images:
        scores = _scores(c, trainer, image, comm, device)
        masks = [one for one in scores if one.ndim == 4]
        dense = any(shared(bool(masks), comm, device))
        if dense:
            file = wanted.output / f"{_stem(image)}.{'zarr' if wanted.format == 'zarr' else 'tif'}"
            classes = _classes(masks[0]) if masks else None
            rank = _place(trainer, comm)
            region = None if classes is None else region_of(classes, rank, wanted.chunk)
            write_mask(file, wanted.format, region, wanted.chunk, comm, device)
            written.append(file)
        else:
            rows.append((image, _shared_scores(scores, comm, device)))
    if rows:
        written.append(wanted.output / SCORES)
        if comm.rank == 0:
            _write_scores(wanted.output / SCORES, rows)
    return written


def _load(trainer: Trainer, c: Configuration, wanted: Wanted) -> None:
    if wanted.weights is not None:
        weights: Any = read_weights(wanted.weights)
        source = wanted.weights
    else:
        source = checkpoint_of(Path(c.folder))
        weights = TrainedWeights(source)
    lacking = trainer.load_state_dict(weights, strict=False)
    if lacking:
        raise UsageError(f"{source} has weights of another model: {str(lacking).splitlines()[0]}")


def view_for(view: View) -> View:
    """As in training, but for the size: an image keeps its own, unless all are resized."""
    return view if view.fit == "resize" else replace(view, size=None)


def _scores(
    c: Configuration, trainer: Trainer, image: Path, comm: Communicator, device: torch.device
) -> list[Tensor]:
    """What this rank has of the model's output: a tensor, or none."""
    dataset = FileDataset([Item(image, 0)], ["0"], view_for(c.data.view), reader=c.data.reader)
    loader = Loader(dataset, 1, shuffle=False, comm=comm, device=device)
    ((images, _),) = loader.epoch(0)
    found = trainer.predict(Typed(images, getattr(torch, c.training.dtype)), gather=False)
    loader.close()
    return [output for _, output in found]


def _classes(scores: Tensor) -> Tensor:
    return scores.argmax(1) if scores.shape[1] > 1 else (scores[:, 0] > 0).long()


def _place(trainer: Trainer, comm: Communicator) -> int:
    """This rank's among those of the last stage."""
    last = trainer.plan.split_size - 1
    mesh = trainer.plan.mesh
    for direction in range(mesh.directions):
        ranks = mesh.ranks(0, direction, last)
        if comm.rank in ranks:
            return ranks.index(comm.rank)
    return -1


def _shared_scores(scores: Sequence[Tensor], comm: Communicator, device: Any) -> list[float]:
    """From those that have them: tiles of the batch, or the same on all ranks of the last stage."""
    own = [one.to_local() if hasattr(one, "to_local") else one for one in scores]
    rows = [row for one in own for row in one.double().softmax(1).tolist()]
    everyone = shared(rows, comm, device)
    first = next(rows for rows in everyone if rows)
    return list(first[0])


def _write_scores(file: Path, rows: Sequence[tuple[Path, list[float]]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["image", *(f"class {n}" for n in range(len(rows[0][1])))])
        for image, scores in rows:
            table.writerow([str(image), *(f"{score:.6g}" for score in scores)])


def _stem(image: Path) -> str:
    return image.name.partition(".")[0]
