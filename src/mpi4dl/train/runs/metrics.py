"""How good predictions are: counts that are summed over tiles, micro-batches and ranks.

Every pixel is counted once, by the rank that owns it; what all ranks of a stage have alike is
counted by the first of them. So a metric is that of one process that has seen everything.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ...comm.communicator import Communicator
from ...comm.objects import shared
from ...errors import UsageError
from ...spatial.tile import Tile, alias, narrowed, redistribute
from .making import checked, of_ones_own
from .reading import unknown

NAMES = ("accuracy", "auc", "f1", "dice", "iou")
BINS = 1024
"""Of the scores of pixels, for their AUC. That of whole images is exact."""


class Metric(Protocol):
    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Cells that nobody else counts: scores (cells, classes), and labels (cells,)."""
        ...

    def values(self, world: Communicator, device: torch.device) -> dict[str, float]:
        """Of everything that all ranks have counted. Collective."""
        ...


class Metrics:
    """Watches an evaluation."""

    def __init__(self, chosen: Sequence[Any], ignore: int | None = None) -> None:
        own = [one for one in chosen if isinstance(one, str) and ":" not in one]
        for name in own:
            if name not in NAMES:
                raise UsageError(
                    f"evaluation.metrics: {unknown(f'metric {name!r}', name, NAMES)}, or name a "
                    "class of torchmetrics as torchmetrics.classification:Name"
                )
        self.metrics: list[Metric] = []
        if set(own) - {"auc"}:
            self.metrics.append(Confusion([name for name in own if name != "auc"]))
        if "auc" in own:
            self.metrics.append(Curve())
        self.metrics += [Borrowed(one) for one in chosen if one not in own]
        self._ignore = ignore

    def watch(self, outputs: Any, labels: Any, samples: range, comm: Communicator) -> None:
        """A micro-batch, as this rank of the last stage has it."""
        if not self.metrics:
            return
        scores, labels = owned(outputs, labels, comm)
        if scores.shape[1] == 1:  # the score of class 1
            scores = torch.cat([torch.zeros_like(scores), scores], 1)
        if labels.is_floating_point():
            labels = labels.long()
        counted = (labels >= 0) & (labels < scores.shape[1])
        if self._ignore is not None:
            counted &= labels != self._ignore
        for metric in self.metrics:
            metric.update(scores[counted], labels[counted])

    def values(self, world: Communicator, device: torch.device) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric in self.metrics:
            found |= metric.values(world, device)
        return found


def owned(outputs: Any, labels: Any, comm: Communicator) -> tuple[Tensor, Tensor]:
    """This rank's own cells: scores (cells, classes), and labels (cells,), both on the CPU."""
    if isinstance(outputs, Tile):
        n = outputs.ndim
        placement = outputs.placement.moved({-n: 1 - n})
        labels = labels.reshape(_apart(outputs))
        if isinstance(labels, Tile):
            labels = alias(redistribute(labels, placement))
        else:
            labels = narrowed(labels, placement)
        outputs = alias(outputs)
    elif comm.rank:
        outputs, labels = outputs[:0], labels[:0]
    scores = outputs.detach().movedim(1, -1).flatten(0, -2)
    return scores.double().cpu(), labels.detach().reshape(-1).cpu()


def _apart(outputs: Tensor) -> tuple[int, ...]:
    """The shape of labels: that of the outputs, without classes."""
    return (outputs.shape[0], *outputs.shape[2:])


# ── by counting ──────────────────────────────────────────────────────────────────────────────────


class Confusion:
    """`counts[label, prediction]`, and what follows from it.

    f1, dice and iou of two classes are those of class 1; of more, the mean of all that occur.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.counts = torch.zeros(0, 0, dtype=torch.int64)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        classes = scores.shape[1]
        if not len(self.counts):
            self.counts = torch.zeros(classes, classes, dtype=torch.int64)
        pairs = labels * classes + scores.argmax(1)
        self.counts += pairs.bincount(minlength=classes**2).view(classes, classes)

    def values(self, world: Communicator, device: torch.device) -> dict[str, float]:
        counts = summed(self.counts, world, device).double()
        hits, real, found = counts.diag(), counts.sum(1), counts.sum(0)
        here = real + found > 0
        here[0] &= len(here) != 2
        f1, iou = 2 * hits / (real + found), hits / (real + found - hits)
        everything = {
            "accuracy": hits.sum() / counts.sum(),
            "f1": f1[here].mean(),
            "dice": f1[here].mean(),
            "iou": iou[here].mean(),
        }
        return {name: float(everything[name]) for name in self._names}


class Curve:
    """The area under the ROC curve: of two classes that of class 1, of more the mean of each
    against all others. Scores of few cells are kept; those of many are sorted into bins."""

    def __init__(self, kept: int = 100_000) -> None:
        self._kept = kept
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._seen = 0
        self.counts = torch.zeros(0, 2, BINS, dtype=torch.int64)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        self._scores.append(scores.softmax(1))
        self._labels.append(labels)
        self._seen += len(labels)
        if self._seen > self._kept:  # then all ranks together have more as well
            self._sort()

    def _sort(self) -> None:
        """`counts[class, whether it is the label's, bin of its score]`"""
        for scores, labels in zip(self._scores, self._labels, strict=True):
            classes = scores.shape[1]
            if not len(self.counts):
                self.counts = torch.zeros(classes, 2, BINS, dtype=torch.int64)
            for one in range(classes):
                place = (scores[:, one] * BINS).long().clamp_(0, BINS - 1)
                place += BINS * (labels == one)
                self.counts[one] += place.bincount(minlength=2 * BINS).view(2, BINS)
        self._scores, self._labels = [], []

    def values(self, world: Communicator, device: torch.device) -> dict[str, float]:
        seen = torch.tensor([self._seen], device=device)
        world.all_reduce(seen)
        if int(seen) > self._kept:
            self._sort()
            counts = summed(self.counts, world, device)
            areas = [_area(no.double(), yes.double()) for no, yes in counts]
        else:
            areas = self._exact(world, device)
        areas = areas[1:] if len(areas) == 2 else areas
        there = [area for area in areas if area == area]
        return {"auc": sum(there) / len(there) if there else float("nan")}

    def _exact(self, world: Communicator, device: torch.device) -> list[float]:
        everyone = shared((self._scores, self._labels), world, device)
        scores = torch.cat([one for scores, _ in everyone for one in scores])
        labels = torch.cat([one for _, labels in everyone for one in labels])
        areas = []
        for one in range(scores.shape[1]):
            # Cells with the same score are one point of the curve.
            _, place = scores[:, one].unique(return_inverse=True)
            counts = torch.zeros(2, int(place.max()) + 1 if len(place) else 1)
            for row, chosen in zip(counts, (labels != one, labels == one), strict=True):
                row += place[chosen].bincount(minlength=len(row))
            areas.append(_area(counts[0].double(), counts[1].double()))
        return areas


def _area(no: Tensor, yes: Tensor) -> float:
    """How often a cell of the class has a higher score than one of another; a tie counts half."""
    below = no.cumsum(0) - no / 2
    pairs = no.sum() * yes.sum()
    return float((yes * below).sum() / pairs) if pairs else float("nan")


def summed(counts: Tensor, world: Communicator, device: torch.device) -> Tensor:
    """Over all ranks; one that has counted nothing does not know how many classes there are."""
    shapes = world.all_gather(torch.tensor(counts.shape, device=device))
    shape = [int(n) for n in shapes.amax(0)]
    total = counts.clone() if counts.numel() else torch.zeros(shape, dtype=torch.int64)
    total = total.to(device)
    world.all_reduce(total)
    return total.cpu()


# ── torchmetrics ─────────────────────────────────────────────────────────────────────────────────


class Borrowed:
    """A metric of torchmetrics; each of its states is reduced over ranks as it says."""

    def __init__(self, what: Any) -> None:
        name, arguments = _named(what)
        made = of_ones_own(name, "evaluation.metrics")
        checked(made, 0, arguments, f"evaluation.metrics: {name}")
        self._metric: Any = made(**arguments)
        self._name = name.rpartition(":")[2]
        if any(isinstance(state, list) for state in self._metric.metric_state.values()):
            raise UsageError(
                f"evaluation.metrics: {name} keeps everything that it sees; give it thresholds, or "
                "use one whose states are sums"
            )

    def update(self, scores: Tensor, labels: Tensor) -> None:
        if len(labels):
            self._metric.update(scores, labels)

    def values(self, world: Communicator, device: torch.device) -> dict[str, float]:
        metric = self._metric

        def gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
            return list(world.all_gather(tensor.to(device)).cpu())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that this rank has counted nothing
            metric.dist_sync_fn, metric.distributed_available_fn = gather, lambda: world.size > 1
            return {self._name: float(metric.compute())}


def _named(what: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(what, Mapping) and isinstance(what.get("name"), str) and ":" in what["name"]:
        return what["name"], what.get("arguments") or {}
    if isinstance(what, str):
        return what, {}
    raise UsageError(f"evaluation.metrics has {what!r}; it must be a name, or name: and arguments:")
