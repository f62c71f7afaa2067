"""Whole training runs: a plan on its ranks against the same model in one process.

One process computes the same micro-batches one after the other, and adds up their gradients. Then
compared are, on every rank: the loss of every step, each gradient of the first update, and after
the last step each parameter and buffer, in place and as `Trainer.state_dict` gives them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import mpi4dl
from mpi4dl.comm.communicator import Communicator
from mpi4dl.pipeline import partition
from support.exactness import GRADIENT_BOUND, OUTPUT_BOUND, TALLY, rand, relative
from support.networks import CLASSES
from support.pool import run_pool

PARAMETER_BOUND = GRADIENT_BOUND
"""After the steps below. If every gradient were off by d, then SGD's parameters would be by at most
rate · 10 · d after each step, for momentum repeats it; Adam's by 2 · rate / eps · d, for it divides
by √v + eps. (With a tiny eps, gradients that are zero but for rounding would become whole steps.)
With the numbers below that is less than half of d after ten steps. So gradients that keep to their
bound keep parameters within it."""


def optimizer_of(training: Training) -> Callable[[Any], torch.optim.Optimizer]:
    if training.optimizer == "sgd":
        return partial(torch.optim.SGD, lr=0.01 * training.rate, momentum=0.9)
    return partial(torch.optim.Adam, lr=1e-3 * training.rate, eps=5e-2)


@dataclass(frozen=True)
class Training:
    """What is trained, and how. `batches` are (images, labels), all different."""

    model: nn.Module
    batches: Sequence[tuple[Any, Any]]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy
    optimizer: str = "sgd"
    rate: float = 1.0
    """Times the usual learning rate: less where gradients are much larger than parameters."""
    split_points: Sequence[str] | None = None
    reduction: str = "mean"
    clip_grad_norm: float | None = None
    accumulate: int = 1
    feed: Callable[[Any], Any] = field(default=lambda value: value)
    """What the trainer gets in place of images or labels."""


def batches(
    samples: int, size: Sequence[int], dense: bool = False, steps: int = 10
) -> list[tuple[Tensor, Tensor]]:
    """Images of this size, and a label for each or, `dense`, for each pixel."""
    made = []
    for step in range(steps):
        generator = torch.Generator("cpu").manual_seed(step)
        shape = (samples, *size) if dense else (samples,)
        labels = torch.randint(0, CLASSES, shape, generator=generator, device="cpu")
        images = rand(samples, 3, *size, seed=step)
        made.append((images, labels.to(images.device)))
    return made


@dataclass
class Trained:
    losses: list[Tensor]
    gradients: dict[str, Tensor | None]
    """Those of the first update, of what this rank has."""
    state: dict[str, Tensor]
    """Likewise, at the end."""
    collected: dict[str, Tensor]
    """The whole model's."""


class FirstGradients:
    """Makes an optimizer, and keeps what the gradients were when it was first to step."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self._make = make
        self.by_id: dict[int, Tensor | None] = {}

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = self._make(parameters)
        optimizer.register_step_pre_hook(self._keep)
        return optimizer

    def _keep(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self.by_id:
            everything = [p for group in optimizer.param_groups for p in group["params"]]
            self.by_id = {id(p): None if p.grad is None else p.grad.clone() for p in everything}

    def named(self, model: nn.Module) -> dict[str, Tensor | None]:
        return {n: self.by_id[id(p)] for n, p in model.named_parameters() if id(p) in self.by_id}


def micro_batches(plan: mpi4dl.Plan, images: Any, labels: Any) -> Iterator[tuple[int, Any, Any]]:
    """In the order of one process: how many samples, their images and their labels."""
    start = 0
    for share in plan.split_batch(_size(images)):
        for count in share:
            here = slice(start, start + count)
            yield count, *(tree_map(lambda x, h=here: x[h], value) for value in (images, labels))
            start += count


def _size(images: Any) -> int:
    return len(torch.utils._pytree.tree_leaves(images)[0])


def one_process(training: Training, plan: mpi4dl.Plan) -> Trained:
    model = copy.deepcopy(training.model)
    trained = [p for p in model.parameters() if p.requires_grad]
    first = FirstGradients(optimizer_of(training))
    optimizer = first(trained)
    losses = []
    for number, (images, labels) in enumerate(training.batches, 1):
        total = torch.zeros((), dtype=torch.float64)
        for count, x, y in micro_batches(plan, images, labels):
            loss = training.loss(model(x), y)
            mean = training.reduction == "mean"
            share = count / _size(images) if mean else 1.0
            (loss * share / (training.accumulate if mean else 1)).backward()
            total += loss.detach() * share
        losses.append(total)
        if number % training.accumulate == 0:
            if training.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(trained, training.clip_grad_norm)
            optimizer.step()
            model.zero_grad()
    state = model.state_dict()
    return Trained(losses, first.named(model), state, state)


def on_rank(training: Training, plan: mpi4dl.Plan) -> Trained:
    """What one of the plan's ranks computes."""
    model = copy.deepcopy(training.model)
    first = FirstGradients(optimizer_of(training))
    trainer = mpi4dl.Trainer(
        model,
        plan,
        training.loss,
        first,
        split_points=training.split_points,
        reduction=training.reduction,  # type: ignore[arg-type]
        clip_grad_norm=training.clip_grad_norm,
        accumulate=training.accumulate,
    )
    losses = [trainer.step(training.feed(x), training.feed(y)) for x, y in training.batches]
    return Trained(losses, first.named(model), model.state_dict(), trainer.state_dict())


def names_on_ranks(training: Training, plan: mpi4dl.Plan) -> list[set[str]]:
    """What each rank has of the model's state."""
    stages = partition(copy.deepcopy(training.model), plan, training.split_points)
    names = [set(stage.state_dict()) for stage in stages]
    return [
        set().union(*(names[stage] for _, stage in plan.mesh.held(rank)))
        for rank in range(plan.world_size)
    ]


def compare(actual: Trained, expected: Trained, has: set[str], where: str) -> float:
    """The worst relative error; fails if any exceeds its bound."""
    errors: dict[str, tuple[float, float]] = {}
    for step, (ours, theirs) in enumerate(zip(actual.losses, expected.losses, strict=True)):
        # Later ones are those of parameters that have been trained.
        errors[f"loss {step}"] = (relative(ours, theirs), PARAMETER_BOUND if step else OUTPUT_BOUND)
    wanted = {n: g for n, g in expected.gradients.items() if n in has}
    assert actual.gradients.keys() == wanted.keys(), f"{where}: {set(actual.gradients)}"
    largest = max(g.norm().item() for g in expected.gradients.values() if g is not None)
    for name, b in wanted.items():
        a = actual.gradients[name]
        assert (a is None) == (b is None), f"{where}: gradient of {name} is {a}, expected {b}"
        if a is not None and b is not None:
            errors[f"gradient of {name}"] = (relative(a, b, largest), GRADIENT_BOUND)
    assert actual.collected.keys() == expected.state.keys()
    scale = max(t.norm().item() for t in expected.state.values() if t.is_floating_point())
    for kind, state in (("rank's", actual.state), ("collected", actual.collected)):
        for name in has if kind == "rank's" else expected.state:
            error = relative(state[name], expected.state[name], scale)
            errors[f"{kind} {name}"] = (error, PARAMETER_BOUND)
    wrong = {n: e for n, (e, bound) in errors.items() if not e <= bound}
    assert not wrong, f"{where}: relative errors {wrong}"
    return max(error for error, _ in errors.values())


Program = Callable[[Communicator], tuple[int, Trained]]
Runner = Callable[[int, Program], list[tuple[int, Trained]]]


def assert_trains_exactly(
    training: Training, plan: mpi4dl.Plan, where: str, run: Runner = run_pool
) -> float:
    """Every rank of `plan` computes what one process does. Returns the worst error."""
    expected = one_process(training, plan)
    has = names_on_ranks(training, plan)

    def program(comm: Communicator) -> tuple[int, Trained]:
        return comm.rank, on_rank(training, plan)

    worst = 0.0
    for rank, actual in run(plan.world_size, program):
        worst = max(worst, compare(actual, expected, has[rank], f"{where}, rank {rank}"))
    TALLY.add(worst, where)
    return worst
