"""A few layers, dry: what they compute, keep and say, forward and backward.

A *unit* is what a stage calls at once: a layer, or a group of layers whose halos are fetched
together or whose activations are computed again. Its trace is taken alone, so that it serves in
every stage that has the unit, and is looked up by what comes in.

    entrance ─▶ unit ─▶ exit          The entrance makes the input and the exit its gradient, as the
             ◀─      ◀─               units before and behind do.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_unflatten

from ..pipeline.description import Description, Leaf, described, rearranged
from ..pipeline.split_backward import SplitBackward
from .recorder import DryCommunicator, Record, Recorder, Workspace

_MAPPED = 2**25


@dataclass(frozen=True)
class End:
    """A tensor between two units, as its storage is seen from one of them."""

    bytes: int
    kept: bool
    """Whether backward wants it."""
    same: int | None = None
    """Of an output: which input it is (a view of)."""


@dataclass(frozen=True)
class Pass:
    """One phase of a unit. Bytes are above what there was when the phase began."""

    record: Record
    peak: int
    left: int
    peak_again: int
    """The peak if the parameters had gradients before, to which new ones are added."""

    @cached_property
    def fetched(self) -> int:
        """Bytes in blocks that the C library gets from the system for each use (glibc's limit)."""
        return sum(size for _, size in self.record.events if size >= _MAPPED)


@dataclass(frozen=True)
class Trace:
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    description: Description
    """Of the output."""
    inner: int
    """Kept for backward, beside inputs and outputs."""
    forward: Pass
    backward: tuple[Pass, ...]
    """At once; or the part of the input, and that of the weights."""
    gradients: int
    """Bytes of the parameters' gradients."""


class _Entrance(torch.autograd.Function):
    """The input appears, as if computed by a unit before this one."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return leaf.new_empty(shape, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.new_empty(()), None, None


class _Exit(torch.autograd.Function):
    """The gradients of the outputs appear, as if computed by the unit behind this one."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.forms = [(tuple(x.shape), x.dtype) for x in outputs]
        return outputs[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return tuple(gradient.new_empty(shape, dtype=dtype) for shape, dtype in ctx.forms)


def traced(
    unit: Callable[[Any], Any],
    parameters: Sequence[Tensor],
    incoming: Description,
    comm: DryCommunicator,
    *,
    split: bool = False,
    workspace: Workspace,
) -> Trace:
    """Run a unit on the meta device. `incoming` says how its input lies on the ranks of `comm`."""
    gc.disable()  # what lives until a collection would seem to live long
    recorder = Recorder(workspace)
    comm.recorder = recorder
    try:
        with recorder:
            return _traced(unit, parameters, incoming, comm, recorder, split)
    finally:
        comm.recorder = None
        for parameter in parameters:
            parameter.grad = None
        gc.enable()


def _traced(
    unit: Callable[[Any], Any],
    parameters: Sequence[Tensor],
    incoming: Description,
    comm: DryCommunicator,
    recorder: Recorder,
    split: bool,
) -> Trace:
    leaves, value, locals_ = _entering(incoming, comm)
    numbers = [recorder.storage(x) for x in locals_]
    sizes = [x.untyped_storage().nbytes() for x in locals_]
    del locals_
    recorder.record = record = Record()
    output = unit(value)
    description, parts = described(output)
    ends = [(recorder.storage(x), x.untyped_storage().nbytes()) for x in parts]
    differentiable = [x for x in parts if x.requires_grad]
    root = _Exit.apply(*differentiable) if differentiable else None
    roots = [get_gradient_edge(root)] if root is not None else []
    del value, output, parts, differentiable, root
    alive = {number for number, _ in recorder._alive.values()}
    made = {number for number, size in record.events if size > 0} & alive
    outer = {number for number, _ in ends if number is not None} | set(numbers)
    born = {number: size for number, size in record.events if size > 0}
    forward = _pass(record, set())
    recorder.record = Record()
    backward = _backward(roots, leaves, parameters, recorder, split)
    return Trace(
        tuple(End(size, n in alive) for n, size in zip(numbers, sizes, strict=True)),
        tuple(
            End(size, n in alive, numbers.index(n) if n in numbers else None) for n, size in ends
        ),
        description,
        sum(born[number] for number in made - outer),
        forward,
        backward,
        sum(p.numel() * p.element_size() for p in parameters),
    )


def _entering(incoming: Description, comm: DryCommunicator) -> tuple[list[Tensor], Any, list[Any]]:
    """The leaves, the unit's input, and the plain tensors that it consists of."""
    leaves, values, locals_ = [], [], []
    for leaf in incoming.leaves:
        if not isinstance(leaf, Leaf):
            values.append(leaf.value)
            continue
        shape = leaf.shape
        if leaf.before is not None:
            shape = leaf.before.boxes(leaf.shape)[comm.rank].shape
        point = torch.empty((), device="meta", requires_grad=leaf.wants_gradient)
        local = _Entrance.apply(point, shape, leaf.dtype)
        leaves.append(point)
        locals_.append(local)
        x = rearranged(local, leaf.before, leaf.before, comm)
        values.append(x if leaf.final is None else x.reshape(leaf.final))
    return leaves, tree_unflatten(values, incoming.structure), locals_


def _backward(
    roots: list[Any],
    leaves: list[Tensor],
    parameters: Sequence[Tensor],
    recorder: Recorder,
    split: bool,
) -> tuple[Pass, ...]:
    if not roots:
        return (_pass(recorder.record, set()),)
    seeds = [torch.empty((), device="meta")]
    wanted = [x for x in leaves if x.requires_grad]
    if not split:
        torch.autograd.backward(roots, seeds)
        roots.clear()
        return (_pass(recorder.record, _gradients(parameters, recorder)),)
    parts = SplitBackward(roots, seeds, wanted)
    first, recorder.record = recorder.record, Record()
    parts.finish()
    roots.clear()
    return _pass(first, set()), _pass(recorder.record, _gradients(parameters, recorder))


def _gradients(parameters: Sequence[Tensor], recorder: Recorder) -> set[int]:
    numbers = [recorder.storage(p.grad) for p in parameters if p.grad is not None]
    return {number for number in numbers if number is not None}


def _pass(record: Record, gradients: set[int]) -> Pass:
    peak, left = _highest(record.events)
    return Pass(record, peak, left, _highest(_added(record.events, gradients))[0])


def _highest(events: Sequence[tuple[int, int]]) -> tuple[int, int]:
    live = peak = 0
    for _, size in events:
        live += size
        peak = max(peak, live)
    return peak, live


def _added(events: Sequence[tuple[int, int]], gradients: set[int]) -> list[tuple[int, int]]:
    """The same, if what is new is added to what was there, and freed before anything else."""
    freed: list[tuple[int, int]] = []
    again: list[tuple[int, int]] = []
    for number, size in events:
        if size > 0:
            again += freed
            freed.clear()
        if number in gradients:
            freed.append((number, -size))
        again.append((number, size))
    return again + freed
