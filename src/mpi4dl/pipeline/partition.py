"""A model in stages, as a plan says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor, nn

from ..errors import PlanError
from ..schedule.schedule import counted
from .balance import balanced, estimate
from .layers import Named, named_layers
from .part import Part, Piece
from .plan import Plan, nearly_equal


def partition(
    model: nn.Module,
    plan: Plan,
    split_points: Sequence[str] | None = None,
    *,
    example: Tensor | Sequence[int] | None = None,
) -> tuple[nn.Sequential, ...]:
    """The stages, made of the model's own layers; together they have its `state_dict`.

    Which layers a stage has, `plan.balance` says. If it does not, the stages are balanced for
    inputs like `example` (or of its shape), where a stage of several ranks is so many times as
    fast; without one, they have equally many layers. Every rank gets the same answer.

    With `split_points` the model is traced, which must not happen while another thread of this
    process runs a model.
    """
    layers = named_layers(model, split_points)
    counts = _counts(layers, plan, example)
    ends = accumulate(counts, initial=0)
    groups = [layers[start:stop] for start, stop in pairwise(ends)]
    stages = tuple(_stage(model, group) for group in groups)
    for stage in stages:
        stage.training = model.training  # its own flag only: the layers keep theirs
    _refuse_shared(model, stages)
    _refuse_left_out(model, stages)
    return stages


def _counts(
    layers: Sequence[Named], plan: Plan, example: Tensor | Sequence[int] | None
) -> tuple[int, ...]:
    total, split = len(layers), plan.split_size
    if total < split:
        raise PlanError(
            f"the model has {counted(total, 'layer')}, and split_size is {split}: every stage "
            f"needs at least 1. Use split_size {total} or less"
        )
    if plan.balance is None:
        if example is None:
            return nearly_equal(total, split)
        costs = estimate([layer for _, layer in layers], example)
        return balanced(costs, split, [plan.tiles(stage) for stage in range(split)])
    if sum(plan.balance) != total:
        raise PlanError(
            f"balance {plan.balance} is for {counted(sum(plan.balance), 'layer')}, and the model "
            f"has {total}: use for instance {_scaled(plan.balance, total)}"
        )
    return plan.balance


def _scaled(balance: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Like `balance`, for another number of layers: every stage gets one, then the neediest."""
    counts = [1] * len(balance)
    for _ in range(total - len(balance)):
        stage = min(range(len(balance)), key=lambda s: counts[s] / balance[s])
        counts[stage] += 1
    return tuple(counts)


def _stage(model: nn.Module, layers: Sequence[Named]) -> nn.Sequential:
    """A plain sequence, wherever its keys can be those of the model."""
    paths = [path for path, _ in layers]
    plain = len(set(paths)) == len(paths) and not any("." in path for path in paths)
    if not plain or any(isinstance(layer, Piece) for _, layer in layers):
        return Part(model, layers)
    stage = nn.Sequential()
    for path, layer in layers:
        stage.add_module(path, layer)
    return stage


def _refuse_shared(model: nn.Module, stages: Sequence[nn.Module]) -> None:
    """Two stages are on different ranks, where each would train a copy of its own."""
    names: dict[int, list[str]] = {}
    for name, tensor in _tensors(model):
        names.setdefault(id(tensor), []).append(name)
    first: dict[int, int] = {}
    for number, stage in enumerate(stages):
        for name, tensor in _tensors(stage):
            where = first.setdefault(id(tensor), number)
            if where != number:
                called = " = ".join(dict.fromkeys([*names.get(id(tensor), []), name]))
                raise PlanError(
                    f"{called} is used by the stages {where} and {number} (tied weights), and "
                    "would become two: choose a balance that puts both into one stage"
                )


def _refuse_left_out(model: nn.Module, stages: Sequence[nn.Module]) -> None:
    kept = {id(tensor) for stage in stages for _, tensor in _tensors(stage)}
    lost = [name for name, tensor in _tensors(model) if id(tensor) not in kept]
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise PlanError(
            f"{', '.join(lost[:3])}{more} of {type(model).__name__} are in no layer: remove what "
            "its forward does not use, or name the layer that it belongs to"
        )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
