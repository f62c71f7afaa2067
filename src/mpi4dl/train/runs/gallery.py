"""Pictures of an evaluation: the image, its labels and what was predicted, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...comm.communicator import Communicator
from ...pipeline import Plan
from .thumbnails import Part, assembled, boxes, of_array, of_tile, shown, stride_for

Observe = Callable[[Any, Any, range, Communicator], object]

_COLOURS = torch.tensor(
    [
        *([0.0, 0.0, 0.0], [0.13, 0.77, 0.37], [0.92, 0.35, 0.05], [0.15, 0.39, 0.92]),
        *([0.98, 0.8, 0.08], [0.66, 0.33, 0.97], [0.02, 0.71, 0.83], [0.93, 0.28, 0.6]),
    ]
)
"""Of classes; more of them begin again with the second."""


def all_of(watches: Sequence[Observe]) -> Observe:
    def watch(outputs: Any, labels: Any, samples: range, comm: Communicator) -> None:
        for one in watches:
            one(outputs, labels, samples, comm)

    return watch


class Gallery:
    """Of the first samples of a batch, if there is a label for each pixel."""

    def __init__(self, plan: Plan, world: Communicator, count: int) -> None:
        self._plan, self._world, self._count = plan, world, count
        self._size: tuple[int, ...] = ()
        self._parts: dict[tuple[int, str], list[Part]] = {}

    def watch(self, outputs: Any, labels: Any, samples: range, comm: Communicator) -> None:
        if not isinstance(outputs, Tensor) or outputs.ndim != 4 or labels.ndim != 3:
            return
        found = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
        stride, first = stride_for(outputs.shape[2:]), comm.rank == 0
        for place, sample in enumerate(samples):
            if sample < self._count:
                self._parts[sample, "prediction"] = of_tile(found, place, stride, first)
                self._parts[sample, "labels"] = of_tile(labels, place, stride, first)

    def take(self, images: Any) -> None:
        """The same samples' images."""
        if len(images.shape) != 4 or not self._count:
            return
        self._size = tuple(map(int, images.shape[2:]))
        box = boxes(self._plan, (self._size[0], self._size[1]))[self._world.rank]
        for sample in range(min(self._count, int(images.shape[0]))):
            self._parts[sample, "image"] = of_array(images, sample, box, stride_for(self._size))

    def pictures(self, device: torch.device) -> dict[str, Tensor]:
        """`sample 0` and so on: three panels in one picture, from 0 to 1. Collective."""
        pictures = {}
        for sample in range(self._count if self._size else 0):
            panels = {
                kind: assembled(
                    self._parts.get((sample, kind), []),
                    self._size,
                    stride_for(self._size),
                    self._world,
                    device,
                )
                for kind in ("image", "labels", "prediction")
            }
            image, labels, found = panels.values()
            if image is not None and labels is not None and found is not None:
                three = [shown(image), coloured(labels), coloured(found)]
                pictures[f"sample {sample}"] = torch.cat(three, 2)
        return pictures


def coloured(classes: Tensor) -> Tensor:
    """Of (1, H, W) labels, which may also be none at all: those are grey."""
    labels = classes[0].long()
    wrapped = torch.where(labels > 0, (labels - 1) % (len(_COLOURS) - 1) + 1, 0)
    picture = _COLOURS[wrapped].movedim(-1, 0)
    return torch.where((labels >= 0) & (labels < 255), picture, torch.full_like(picture, 0.5))
