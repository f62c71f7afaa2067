"""The sections of a configuration file: what can be said, and what holds if nothing is said.

docs/train.md has a table of all of this, made from these classes.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

from ...data import View
from ...pipeline import Plan

KINDS = ("folder", "masks", "table", "cifar", "synthetic", "synthetic-segmentation")


def said(
    default: Any, text: str, *, least: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """A field with its explanation, and what limits its values."""
    metadata = {"text": text, "least": least, "choices": choices}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def required(text: str) -> Any:
    return field(default=MISSING, metadata={"text": text, "least": None, "choices": ()})


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str = required("a model of the catalogue, or `package.module:function` of your own")
    arguments: dict[str, Any] = said({}, "what it is called with")
    weights: str | None = said(None, "a safetensors file of weights to begin with")
    differ: tuple[str, ...] = said((), "names that begin so may be missing there, or differ")
    split_points: tuple[str, ...] = said((), "where a model that is no sequence may be cut")


@dataclass(frozen=True)
class Optimizer:
    name: str = said("SGD", "one of torch.optim")
    lr: float = said(0.01, "learning rate", least=0)
    arguments: dict[str, Any] = said({}, "what else it is called with: momentum, weight_decay, …")
    shard: bool = said(False, "copies of a stage share out its state (ZeRO-1)")


@dataclass(frozen=True)
class Scheduler:
    """Of the learning rate. Without a name, there is none."""

    name: str | None = said(None, "one of torch.optim.lr_scheduler")
    arguments: dict[str, Any] = said({}, "what it is called with, after the optimizer")
    every: str = said("epoch", "when it steps", choices=("epoch", "step"))
    metric: str = said("loss", "of the evaluation, for ReduceLROnPlateau")


@dataclass(frozen=True)
class Loss:
    name: str = said(
        "cross_entropy",
        "of torch.nn.functional, `dice`, `package.module:function`, or a sum: `cross_entropy+dice`",
    )
    arguments: dict[str, Any] = said({}, "what it is called with, after outputs and labels")


@dataclass(frozen=True)
class Training:
    epochs: int = said(1, "how often all images are seen", least=0)
    steps: int | None = said(None, "end after so many steps, whatever the epoch", least=1)
    batch_size: int = said(1, "samples of a step: of all ranks and micro-batches", least=1)
    seed: int = said(0, "of weights, order, augmentations and dropout", least=0)
    dtype: str = said("float32", "of weights and images", choices=("float32", "float64"))
    clip: float | None = said(None, "largest norm of the whole model's gradient", least=0)
    accumulate: int = said(1, "batches of an update", least=1)
    ema: float | None = said(
        None, "decay of an average of the weights, which is evaluated", least=0
    )
    nonfinite: str = said(
        "raise",
        "what to do about a loss that is no number",
        choices=("raise", "skip", "stop", "ignore"),
    )
    stop_metric: str | None = said(None, "stop early if this metric of the evaluation stands still")
    stop_after: int = said(5, "evaluations without a better value until then", least=1)
    stop_margin: float = said(0.0, "by how much a value has to be better", least=0)
    device: str | None = said(None, "`cpu`, `cuda`, `cuda:1`; else GPUs if there are any")
    backend: str | None = said(None, "of torch.distributed; else what fits")


@dataclass(frozen=True)
class Evaluation:
    every: int = said(1, "epochs from one evaluation to the next; 0: never", least=0)
    every_steps: int | None = said(None, "also after every so many steps", least=1)
    batch_size: int | None = said(None, "samples at once; else as in training", least=1)
    metrics: tuple[Any, ...] = said(
        (),
        "`accuracy`, `auc`, `f1`, `dice`, `iou`, or a torchmetrics class: "
        "`{name: torchmetrics.classification:MulticlassMatthewsCorrCoef, arguments: {…}}`",
    )
    ignore: int | None = said(None, "a label that no metric counts")


@dataclass(frozen=True)
class Logging:
    every: int = said(1, "steps from one line of the log to the next", least=1)
    tensorboard: bool = said(False, "write scalars and images for TensorBoard")
    pictures: int = said(2, "pictures of an evaluation for TensorBoard", least=0)
    trace: int = said(2, "of which step a timeline is kept; 0: of none", least=0)
    verbose: bool = said(False, "print a line for every step")


@dataclass(frozen=True)
class Data:
    """Images and labels. A table with a column `split` says itself what is trained and evaluated.

    A kind of your own is `package.module:function`, which returns a data set as `mpi4dl.data` has
    them, or two: for training and for evaluation.
    """

    kind: str = said("synthetic", f"{', '.join(KINDS)}, or `package.module:function`")
    arguments: dict[str, Any] = said({}, "what a function of your own is called with")
    images: str | None = said(None, "folder of the images; for `table`, the CSV file")
    masks: str | None = said(None, "folder of the masks, for `masks`")
    classes: tuple[str, ...] = said((), "names of what masks show, in the order of their numbers")
    mask_values: tuple[Any, ...] = said((), "values of the classes in masks, such as [0, 255]")
    reader: str | None = said(None, "how files are read, if not as their suffixes say")
    validation: float = said(0.2, "share that is evaluated and not trained", least=0)
    held_out: str = said("validation", "what the column `split` calls those that are evaluated")
    augment: tuple[Any, ...] = said(
        (), "changes by chance: `RandomFlip`, `{name: ColourJitter, brightness: 0.2}`, …"
    )
    workers: int = said(0, "threads that read ahead, on each rank", least=0)
    ahead: int = said(1, "batches that they read ahead", least=1)
    damaged: str = said("raise", "files that cannot be read", choices=("raise", "skip"))
    samples: int = said(16, "of an epoch, if synthetic", least=1)
    evaluated: int = said(4, "samples of an evaluation, if synthetic", least=0)
    count: int = said(2, "classes, if synthetic", least=1)
    view: View = field(default_factory=View)


@dataclass(frozen=True)
class Checkpointing:
    every: int = said(1, "epochs from one checkpoint to the next; 0: none", least=0)
    every_steps: int | None = said(None, "also after every so many steps", least=1)
    keep: int = said(3, "how many stay, the last ones", least=1)
    asynchronous: bool = said(True, "write while training goes on")
    best: str | None = said(None, "a metric of the evaluation: keep what was best, in `best`")
    resume: bool = said(True, "go on from the last one in the folder, if there is any")


@dataclass(frozen=True)
class Configuration:
    """All that a run is told."""

    model: Model
    folder: str = said("runs/latest", "where everything of this run is written")
    data: Data = field(default_factory=Data)
    plan: Plan = field(default_factory=Plan)
    optimizer: Optimizer = field(default_factory=Optimizer)
    scheduler: Scheduler = field(default_factory=Scheduler)
    loss: Loss = field(default_factory=Loss)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpointing = field(default_factory=Checkpointing)
    logging: Logging = field(default_factory=Logging)
