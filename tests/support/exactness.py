"""The one question of this project, asked of anything: is it what one process computes?

`assert_exact` runs a module or function once in one process and once on tiles, and compares
outputs, input gradients, parameter gradients and buffers in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import mpi4dl
from mpi4dl.comm.communicator import Communicator
from support.ranks import every_rank_raises, run_ranks

OUTPUT_BOUND = 1e-12
GRADIENT_BOUND = 1e-11


@dataclass
class Tally:
    """How many comparisons the whole session made, and the worst of them."""

    cases: int = 0
    worst: float = 0.0
    where: str = ""

    def add(self, error: float, where: str) -> None:
        self.cases += 1
        if error >= self.worst:
            self.worst, self.where = error, where


TALLY = Tally()


@dataclass
class Result:
    outputs: list[Any]
    input_grads: list[Tensor | None]
    param_grads: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    numbers = torch.randn(shape, dtype=dtype, generator=generator, device="cpu")
    return numbers.to(torch.get_default_device())


def relative(actual: Tensor, expected: Tensor, scale: float = 0.0) -> float:
    """‖a − b‖ / (‖b‖ + 1e-3 · the largest norm), so that gradients which are zero count as such."""
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.dtype != expected.dtype:
        raise AssertionError(f"dtype {actual.dtype}, expected {expected.dtype}")
    a, b = actual.detach().double(), expected.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())  # infinities and NaNs compare by identity
    a, b = a.masked_fill(same, 0), b.masked_fill(same & ~b.isfinite(), 0)
    difference = (a - b.masked_fill(same, 0)).norm().item()
    if difference == 0:
        return 0.0
    return float(difference / (b.norm().item() + 1e-3 * scale + 1e-300))


def _loss(outputs: list[Any]) -> Tensor | None:
    """A number that depends on every floating-point output in a different way."""
    total: Tensor | None = None
    for i, out in enumerate(outputs):
        if isinstance(out, Tensor) and out.is_floating_point() and out.requires_grad:
            seed = rand(*out.shape, seed=1000 + i).to(out.dtype)
            term = (out * seed).sum()
            total = term if total is None else total + term
    return total


def single_process(fn: Callable[..., Any], inputs: Sequence[Any]) -> Result:
    fn = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
    leaves = [_leaf(x) for x in inputs]
    outputs = tree_flatten(fn(*[_fresh(x) for x in leaves]))[0]
    return _result(fn, leaves, outputs, lambda t: t)


def _fresh(x: Any) -> Any:
    """A non-leaf copy, so that in-place operators on the input are allowed."""
    return x.clone() if isinstance(x, Tensor) else x


class Constant:
    """An input that wants no gradient: images in training are such."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def _leaf(x: Any) -> Any:
    if isinstance(x, Constant):
        return x.value.detach().clone()
    if isinstance(x, Tensor):
        return x.detach().clone().requires_grad_(x.is_floating_point())
    return x


def _result(
    fn: Any, leaves: list[Any], outputs: list[Any], average: Callable[[Tensor], Tensor]
) -> Result:
    loss = _loss(outputs)
    if loss is not None:
        loss.backward()
    module = fn if isinstance(fn, nn.Module) else nn.Module()
    return Result(
        outputs=[o.detach() if isinstance(o, Tensor) else o for o in outputs],
        input_grads=[
            average(x.grad) if isinstance(x, Tensor) and x.grad is not None else None
            for x in leaves
        ],
        param_grads={
            n: average(p.grad) if p.grad is not None else None for n, p in module.named_parameters()
        },
        buffers={n: b.clone() for n, b in module.named_buffers()},
    )


Program = Callable[[Communicator], Result]


def _on_tiles(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    grid: Sequence[int],
    dims: Sequence[int] | None,
    layout: mpi4dl.Layout | None,
    plain: Sequence[int],
) -> tuple[int, Program]:
    """How many ranks there are, and what each of them does."""

    def program(comm: Communicator) -> Result:
        mine = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
        leaves = [_leaf(x) for x in inputs]
        args = [
            mpi4dl.shard(_fresh(x), None if layout else grid, dims, layout)
            if isinstance(x, Tensor) and i not in plain
            else _fresh(x)
            for i, x in enumerate(leaves)
        ]
        outputs = tree_flatten(mine(*args))[0]
        whole = [o.full_tensor() if isinstance(o, mpi4dl.Tile) else o for o in outputs]
        for out, full in zip(outputs, whole, strict=True):
            if isinstance(out, Tensor):
                assert out.shape == full.shape, f"says {out.shape}, is {full.shape}"

        def average(t: Tensor) -> Tensor:
            t = t.detach().clone()
            comm.all_reduce(t)
            return t / comm.size

        return _result(mine, leaves, whole, average)

    return layout.ranks if layout is not None else prod(grid), program


def on_tiles(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    grid: Sequence[int],
    dims: Sequence[int] | None = None,
    layout: mpi4dl.Layout | None = None,
    plain: Sequence[int] = (),
) -> Result:
    """What every rank computes; ranks must agree. Inputs whose index is in `plain` stay whole."""
    results = run_ranks(*_on_tiles(fn, inputs, grid, dims, layout, plain))
    for other in results[1:]:
        for a, b in zip(results[0].outputs, other.outputs, strict=True):
            # Equal inputs; but kernels may round by where in memory their operands lie.
            assert (
                not isinstance(a, Tensor) or relative(a, b) < 1e-14 or not a.is_floating_point()
            ), f"two ranks disagree about an output by {relative(a, b)}"
    return results[0]


def assert_refused(
    fn: Callable[..., Any],
    *inputs: Any,
    match: str = "",
    error: type[Exception] | tuple[type[Exception], ...] = mpi4dl.UnsupportedOperator,
    grid: Sequence[int] = (2, 2),
    dims: Sequence[int] | None = None,
    plain: Sequence[int] = (),
    alike: bool = True,
) -> None:
    """`fn(*inputs)` on tiles is the same error on every rank; arguments as for `assert_exact`."""
    every_rank_raises(*_on_tiles(fn, inputs, grid, dims, None, plain), error, match, alike)


def compare(actual: Result, expected: Result, where: str = "") -> float:
    """The worst relative error; fails if any exceeds its bound."""
    assert len(actual.outputs) == len(expected.outputs)
    errors: dict[str, tuple[float, float]] = {}
    for i, (a, b) in enumerate(zip(actual.outputs, expected.outputs, strict=True)):
        if isinstance(b, Tensor):
            errors[f"output {i}"] = (relative(a, b), OUTPUT_BOUND)
        else:
            assert a == b, f"{where}: output {i} is {a}, expected {b}"
    # As with gradients: a running mean of values that cancel is zero but for rounding.
    scale = max((b.norm().item() for b in expected.buffers.values() if b.ndim), default=0.0)
    for name, b in expected.buffers.items():
        errors[f"buffer {name}"] = (relative(actual.buffers[name], b, scale), OUTPUT_BOUND)
    pairs = {f"gradient of input {i}": g for i, g in enumerate(expected.input_grads)}
    pairs |= {f"gradient of {n}": g for n, g in expected.param_grads.items()}
    ours = {f"gradient of input {i}": g for i, g in enumerate(actual.input_grads)}
    ours |= {f"gradient of {n}": g for n, g in actual.param_grads.items()}
    largest = max((g.norm().item() for g in pairs.values() if g is not None), default=0.0)
    for name, b in pairs.items():
        a = ours[name]
        assert (a is None) == (b is None), f"{where}: {name} is {a}, expected {b}"
        if a is not None and b is not None:
            errors[name] = (relative(a, b, largest), GRADIENT_BOUND)
    wrong = {n: e for n, (e, bound) in errors.items() if not e <= bound}
    assert not wrong, f"{where}: relative errors {wrong}"
    worst = max((e for e, _ in errors.values()), default=0.0)
    TALLY.add(worst, where)
    return worst


def rounding_errors(actual: Result, reference: Result) -> dict[str, float]:
    """Of every output, gradient and floating-point buffer, relative to a float64 reference."""

    def numbers(r: Result) -> dict[str, Tensor]:
        named = {f"output {i}": o for i, o in enumerate(r.outputs)}
        named |= {f"gradient of input {i}": g for i, g in enumerate(r.input_grads)}
        named |= {f"gradient of {n}": g for n, g in r.param_grads.items()} | r.buffers
        return {n: t.double() for n, t in named.items() if t is not None and t.ndim}

    exact = numbers(reference)
    return {name: relative(value, exact[name]) for name, value in numbers(actual).items()}


def assert_exact(
    fn: Callable[..., Any],
    *inputs: Any,
    grid: Sequence[int] = (2, 2),
    dims: Sequence[int] | None = None,
    layout: mpi4dl.Layout | None = None,
    plain: Sequence[int] = (),
) -> float:
    """`fn(*inputs)` on tiles equals one process: outputs, all gradients, buffers, in float64.

    Every tensor input is sharded by `grid` over `dims` (default: the last dimensions), save those
    whose position is in `plain`. Outputs may be any nesting of tensors. Returns the worst error.
    """
    if isinstance(fn, nn.Module):
        fn = copy.deepcopy(fn).double()
    expected = single_process(fn, inputs)
    actual = on_tiles(fn, inputs, grid, dims, layout, plain)
    name = type(fn).__name__ if isinstance(fn, nn.Module) else getattr(fn, "__name__", "function")
    return compare(actual, expected, f"{name} on {layout or tuple(grid)}")
