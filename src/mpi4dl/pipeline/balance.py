"""How many layers each stage gets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..errors import PlanError
from ..schedule.schedule import counted
from ..spatial.twin import meta_twin

FLOPS_PER_BYTE = 10
"""What a processor computes while it moves a byte: 5 to 20, on CPUs as on GPUs."""


def balanced(
    costs: Sequence[float], stages: int, speeds: Sequence[float] | None = None
) -> tuple[int, ...]:
    """How many of the layers, in order, each stage takes: the slowest stage as fast as can be.

    Exact. Every stage gets a layer at least. Among the ways to do it, the one whose stages are
    most alike. `speeds` says how much faster than 1 each stage computes: its number of ranks.
    """
    if not 1 <= stages <= len(costs):
        raise PlanError(
            f"{counted(len(costs), 'layer')} cannot be shared out to {counted(stages, 'stage')}: "
            f"every stage needs at least 1; use split_size 1 to {len(costs)}"
        )
    speeds = speeds or (1,) * stages
    if len(speeds) != stages or min(speeds) <= 0 or min(costs) < 0:
        raise PlanError(
            f"{counted(stages, 'stage')} with the speeds {tuple(speeds)} and layers of at least "
            f"{min(costs)}: give every stage a speed above 0, and no layer a cost below"
        )
    before = [0.0, *accumulate(costs)]

    def time(stage: int, first: int, stop: int) -> float:
        return (before[stop] - before[first]) / speeds[stage]

    slowest, _ = _cheapest(len(costs), stages, time, max)

    def square(stage: int, first: int, stop: int) -> float:
        taken = time(stage, first, stop)
        return taken * taken if taken <= slowest else float("inf")

    _, cuts = _cheapest(len(costs), stages, square, lambda a, b: a + b)
    return tuple(stop - start for start, stop in zip((0, *cuts), cuts, strict=False))


def _cheapest(
    layers: int,
    stages: int,
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    """The best total, and where the stages end; of equals, the one with the most layers first.

    `best[n]` is the best way to share out the first n layers to the stages so far.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        left = stages - 1 - stage
        best = {
            stop: min(
                (
                    (join(total, cost(stage, first, stop)), (*ends, stop))
                    for first, (total, ends) in best.items()
                    if first < stop
                ),
                key=lambda way: (way[0], tuple(-end for end in way[1])),
            )
            for stop in range(stage + 1, layers - left + 1)
        }
    return best[layers]


def estimate(layers: Sequence[nn.Module], example: Tensor | Sequence[int]) -> tuple[float, ...]:
    """What each layer costs, for an input like `example` or of its shape; only ratios matter.

    Counted in a run on the meta device: arithmetic, and the bytes that operators read and write.
    The layers stay as they are, and so do the random numbers. If a layer cannot run there, the
    numbers of parameters are used for all of them.
    """
    shape = example.shape if isinstance(example, Tensor) else tuple(example)
    dtype = example.dtype if isinstance(example, Tensor) else None
    value: Any = torch.empty(shape, dtype=dtype, device="meta")
    costs: list[float] = []
    for number, layer in enumerate(layers):
        try:
            cost, value = _dry_run(layer, value)
        except Exception as error:  # whatever a layer does that a meta tensor cannot
            warnings.warn(
                f"layer {number}, {type(layer).__name__}, does not run on the meta device "
                f"({type(error).__name__}: {error}); its parameters are counted instead",
                stacklevel=2,
            )
            return tuple(float(sum(p.numel() for p in layer.parameters())) for layer in layers)
        costs.append(cost)
    return tuple(costs)


def _dry_run(layer: nn.Module, value: Any) -> tuple[float, Any]:
    twin = meta_twin(layer).eval()  # BatchNorm refuses to train on a single value
    flops, traffic = FlopCounterMode(display=False), _Traffic()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), flops, traffic:
        value = twin(value)
    return flops.get_total_flops() + FLOPS_PER_BYTE * traffic.bytes, value


class _Traffic(TorchDispatchMode):
    """Counts the bytes of everything that operators read and write; views do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            moved = (v for v in tree_leaves((args, kwargs, out)) if isinstance(v, Tensor))
            self.bytes += sum(v.numel() * v.element_size() for v in moved)
        return out
