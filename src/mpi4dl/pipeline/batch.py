"""A step's images and labels. Each rank reads only what it has."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from ..comm.communicator import Communicator
from ..errors import PlanError
from ..geometry import Box
from .arrangement import Arrangement, Shape, Signature
from .description import rearranged
from .plan import Plan, nearly_equal

Arrange = Callable[[Shape], Arrangement | None]


class Batch:
    """Images and labels, the same on all ranks: tensors, or anything with a shape and slices.

    Either may be several in any nesting. Micro-batches share out their first dimension. What only
    *looks* like an array (a file that is mapped to memory, a remote one) is never read whole.
    """

    def __init__(self, plan: Plan, images: Any, labels: Any, training: bool) -> None:
        self._images, self._labels = images, labels
        inputs, _ = tree_flatten(images)
        if not inputs or not all(hasattr(x, "shape") and len(x.shape) for x in inputs):
            raise PlanError(
                "images must be a tensor, an array, or a nesting of them, with the batch as first "
                f"dimension; they are {type(images).__name__}"
            )
        self.size = int(inputs[0].shape[0])
        for other in (*inputs, *tree_leaves(labels)):
            if hasattr(other, "shape") and tuple(other.shape[:1]) != (self.size,):
                raise PlanError(
                    f"images are {self.size} samples, and there is a tensor of "
                    f"{tuple(other.shape)} among images and labels: their first dimensions must be "
                    "the same"
                )
        self.image_dims = max(len(x.shape) for x in inputs) - 2
        shares = plan.split_batch(self.size) if training else _for_evaluation(plan, self.size)
        ends = list(accumulate((n for share in shares for n in share), initial=0))
        self._ranges = [range(a, b) for a, b in pairwise(ends)]
        self.micro_batches = len(shares[0])
        """Of each replica."""

    def samples(self, replica: int, micro_batch: int) -> range:
        """Which of the samples these are."""
        return self._ranges[self.number(replica, micro_batch)]

    def number(self, replica: int, micro_batch: int) -> int:
        """Where the micro-batch would be in the order of one process."""
        return replica * self.micro_batches + micro_batch

    def share(self, replica: int, micro_batch: int) -> float:
        """The micro-batch's part of the whole."""
        return len(self.samples(replica, micro_batch)) / self.size

    def images(
        self, samples: range, arrange: Arrange, comm: Communicator, device: torch.device
    ) -> Any:
        """This rank's part of the images, for a stage whose ranks are those of `comm`."""
        return tree_map(lambda x: _part(x, samples, arrange, comm, device), self._images)

    def labels(
        self, samples: range, arrange: Arrange, comm: Communicator, device: torch.device
    ) -> Any:
        return tree_map(lambda x: _part(x, samples, arrange, comm, device), self._labels)

    def signature(self, samples: range, training: bool) -> Signature:
        """Of a micro-batch with these samples."""
        shapes = tuple(map(_shape_and_dtype, tree_leaves(self._images)))
        return Signature(len(samples), self.image_dims, training, shapes)

    def __str__(self) -> str:
        """For ranks to compare."""
        leaves = tree_leaves((self._images, self._labels))
        kinds = ", ".join(map(str, map(_shape_and_dtype, leaves)))
        return f"{self.size} × {kinds}"


def _shape_and_dtype(x: Any) -> Any:
    return (tuple(x.shape[1:]), str(getattr(x, "dtype", ""))) if hasattr(x, "shape") else x


def _for_evaluation(plan: Plan, samples: int) -> tuple[tuple[int, ...], ...]:
    """As in training, with fewer micro-batches if there are fewer samples."""
    if samples < plan.replicas:
        raise PlanError(
            f"there are {samples} samples, and {plan.replicas} replicas: evaluate at least one "
            "sample for each"
        )
    shares = nearly_equal(samples, plan.replicas)
    count = min(plan.times * plan.parts, *shares)
    return tuple(nearly_equal(share, count) for share in shares)


def _part(
    x: Any, samples: range, arrange: Arrange, comm: Communicator, device: torch.device
) -> Any:
    if not hasattr(x, "shape"):
        return x
    shape = (len(samples), *map(int, x.shape[1:]))
    arrangement = arrange(shape)
    box = Box.full(shape) if arrangement is None else arrangement.boxes(shape)[comm.rank]
    first, *others = (slice(i.start, i.stop) for i in box.intervals)
    here = slice(samples.start + first.start, samples.start + first.stop)
    part = torch.as_tensor(x[(here, *others)]).to(device).contiguous()
    return rearranged(part, arrangement, arrangement, comm)
