"""Executes the lists of a schedule: each rank works off its own, from first to last.

    RF ─▶ F ─▶ SF        forward: receive, compute, send
    RB ─▶ B ─▶ SB        backward: likewise, upstream
          R              all copies of a stage begin to add up their gradients

Receives are posted where they stand and waited for where their data is needed, and reductions
at the end. What the lists guarantee (`schedule/lowering.py`) holds for any transport whose sends
return at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..comm.communicator import Communicator
from ..errors import PlanError
from ..schedule import Action, Kind, Program, Span
from ..spatial.tile import Tile
from .arrangement import Shape, Signature, feeding, labelling
from .batch import Batch
from .boundary import Arriving, Boundary, Route
from .description import described, entering
from .randomness import own_randomness
from .reduction import Reduction
from .setup import Held, Setup
from .stage import Work

_WORDS = {
    Kind.FORWARD: "the forward",
    Kind.BACKWARD: "the backward",
    Kind.INPUT: "the backward",
    Kind.WEIGHT: "the backward",
}

Observe = Callable[[Any, Any, range, Communicator], object]
"""Called with outputs and labels as this rank has them, which samples of the batch they are, and
the ranks of the stage."""

Place = tuple[int, int, int]
"""A micro-batch on a stage: direction, stage, micro-batch."""


@dataclass
class Step:
    """What a run of a program is about, and what comes out of it."""

    program: Program
    batch: Batch
    training: bool
    updating: bool
    """Whether the gradients are complete after it, and added up over all copies."""
    loss: Callable[[Any, Any], Tensor] | None
    weight: Callable[[int], float]
    """How much the loss of a micro-batch of this replica counts."""
    scale: float = 1.0
    """By which gradients are larger than they should be (for float16)."""
    seed: int = 0
    observe: Observe | None = None
    """Sees outputs and labels of every micro-batch whose last stage this rank has."""
    losses: dict[int, Tensor] = field(default_factory=dict)
    """Of the micro-batches whose last stage this rank has."""
    outputs: dict[int, Any] = field(default_factory=dict)
    """The same, if there is no loss."""
    spans: list[Span] = field(default_factory=list)


class Engine:
    """This rank's part of every program."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._last = setup.plan.split_size - 1
        self._works: dict[Place, Work] = {}
        self._arriving: dict[Place, tuple[Route, list[Arriving]]] = {}
        self._returning: dict[Place, list[Arriving]] = {}
        self._gradients: dict[Place, list[Tensor]] = {}
        self._step: Step
        self.at: Action | None = None
        """What this rank is doing, or waits to be able to do."""
        self.awaiting = False
        self._do: dict[Kind, Callable[[Action], None]] = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.INPUT: self._backward_of_input,
            Kind.WEIGHT: self._backward_of_parameters,
            Kind.SEND_FORWARD: self._send_forward,
            Kind.RECEIVE_FORWARD: self._receive_forward,
            Kind.SEND_BACKWARD: self._send_backward,
            Kind.RECEIVE_BACKWARD: self._receive_backward,
            Kind.REDUCE: self._reduce,
        }

    def run(self, step: Step) -> None:
        """Collective. What is left over after an error is forgotten."""
        self._step = step
        try:
            with self._surroundings():
                actions = step.program.part(tuple(self._setup.held))
                last = {a.stage: a for a in actions if a.kind in (Kind.BACKWARD, Kind.WEIGHT)}
                for action in actions:
                    self.at = action
                    self._await(action)
                    started = time.perf_counter()
                    if last.get(action.stage) is action:
                        self._last_backward()
                    self._do[action.kind](action)
                    step.spans.append(Span(action, started, time.perf_counter()))
                self.at = None
                for reduction in self._reductions():
                    reduction.finish()
                for held in self._setup.held.values():
                    held.finish()
        finally:
            for memory in (self._works, self._arriving, self._returning, self._gradients):
                memory.clear()

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self._step.training))
            if self._step.training:
                count = self._step.batch.micro_batches * self._setup.plan.replicas
                for statistics in self._setup.statistics.values():
                    stack.enter_context(statistics.step(count))
            yield

    def _await(self, action: Action) -> None:
        """What computing needs has arrived: waiting is no part of it."""
        self.awaiting = True
        if action.kind is Kind.FORWARD and _place(action) in self._arriving:
            for tensor in self._arriving[_place(action)][1]:
                tensor.wait()
        elif action.kind in (Kind.BACKWARD, Kind.INPUT):
            for tensor in self._returning.get(_place(action), ()):
                tensor.wait()
        self.awaiting = False

    def waits_for(self) -> str:
        """If it waits for another rank: for what. Another thread may ask."""
        action = self.at
        if action is None:
            return "the sum of the gradients"
        about = f"stage {action.stage}, micro-batch {action.micro_batch}"
        if self.awaiting and action.kind is Kind.FORWARD:
            return f"the input of {about}"
        if self.awaiting:
            return f"the gradient that comes back to {about}"
        if action.kind is Kind.REDUCE:
            return f"the sum of the gradients of stage {action.stage}"
        return f"other ranks in {_WORDS.get(action.kind, 'a transfer')} of {about}"

    # ── compute ──────────────────────────────────────────────────────────────────────────────

    def _forward(self, action: Action) -> None:
        step, held = self._step, self._held(action)
        value, entrances = self._input(action, held)
        work = Work(entrances, splits=not held.layers.recomputes)
        with self._random(action), self._watched(action, held):
            value = held.layers(value)
            if action.stage < self._last:
                work.description, outputs = described(value)
                work.give(outputs)
            elif step.loss is None:
                step.outputs[_micro_batch(action)] = value
            else:
                self._finish_forward(action, held, work, value)
        if step.training or action.stage < self._last:
            self._works[_place(action)] = work

    def _finish_forward(self, action: Action, held: Held, work: Work, value: Any) -> None:
        """The loss: one number, of which every rank of the last stage has a copy."""
        step, micro_batch = self._step, _micro_batch(action)
        assert step.loss is not None
        outputs = tuple((leaf.shape, leaf.before) for leaf in described(value)[0].tensors)
        samples = self._samples(action)
        labels = step.batch.labels(
            samples, lambda shape: labelling(shape, outputs), held.comm, self._setup.device
        )
        with held.layers.precision():
            loss = step.loss(value, labels)
        _check(loss)
        if step.observe is not None:
            step.observe(value, labels, samples, held.comm)
        step.losses[micro_batch] = loss.detach()
        seed = step.weight(micro_batch) * step.scale / held.comm.size
        work.give([loss])
        work.gradients = [torch.full_like(loss, seed)]

    def _random(self, action: Action) -> AbstractContextManager[None]:
        number, device = self._number(action), self._setup.device
        return own_randomness(self._step.seed, number, action.stage, device)

    def _watched(self, action: Action, held: Held) -> AbstractContextManager[None]:
        """Running statistics hear of what is trained."""
        statistics = self._setup.statistics[action.stage]
        return statistics.micro_batch(self._number(action), 1 / held.comm.size)

    def _input(self, action: Action, held: Held) -> tuple[Any, list[Tensor]]:
        plan, stage = self._setup.plan, action.stage
        if stage == 0:

            def arrange(shape: Shape) -> Any:
                return feeding(plan, 0, shape, self._step.batch.image_dims)

            samples = self._samples(action)
            return self._step.batch.images(samples, arrange, held.comm, self._setup.device), []
        if held.incoming is not None:
            route, arriving = self._arriving.pop(_place(action))
            parts = [tensor.whole for tensor in arriving]
            after = list(route.after)
            return entering(route.description, parts, after, after, held.comm)
        # The stage before is on the same ranks: nothing travels, but it may lie differently.
        before = self._before(action)
        assert before.description is not None
        leaves = before.description.tensors
        has = [leaf.before for leaf in leaves]
        wants = [held.arrange(leaf, self._signature(action)) for leaf in leaves]
        parts = [part.detach() for part in before.pass_on()]
        return entering(before.description, parts, has, wants, held.comm)

    def _before(self, action: Action) -> Work:
        """The micro-batch on the stage before, if that is on the same ranks."""
        place = _place(action.at(Kind.FORWARD, action.stage - 1))
        return self._works[place] if self._step.training else self._works.pop(place)

    def _backward(self, action: Action) -> None:
        self._returned(action)
        self._pass_back(action, self._works.pop(_place(action)).backward())

    def _backward_of_input(self, action: Action) -> None:
        self._returned(action)
        self._pass_back(action, self._works[_place(action)].backward_of_input())

    def _backward_of_parameters(self, action: Action) -> None:
        self._works.pop(_place(action)).backward_of_parameters()

    def _returned(self, action: Action) -> None:
        """The gradients of the outputs, if they come from other ranks."""
        if _place(action) in self._returning:
            arrived = self._returning.pop(_place(action))
            self._works[_place(action)].gradients = [tensor.whole for tensor in arrived]

    def _pass_back(self, action: Action, gradients: list[Tensor]) -> None:
        if self._held(action).incoming is not None:
            self._gradients[_place(action)] = gradients
        elif action.stage:
            self._before(action).gradients = gradients

    # ── communicate ──────────────────────────────────────────────────────────────────────────

    def _send_forward(self, action: Action) -> None:
        work = self._works[_place(action)]
        assert work.description is not None
        self._outgoing(action).send(self._signature(action), work.description, work.pass_on())
        if not self._step.training:
            del self._works[_place(action)]

    def _receive_forward(self, action: Action) -> None:
        self._arriving[_place(action)] = self._incoming(action).receive(self._signature(action))

    def _send_backward(self, action: Action) -> None:
        gradients = self._gradients.pop(_place(action))
        self._incoming(action).send_back(self._signature(action), gradients)

    def _receive_backward(self, action: Action) -> None:
        self._returning[_place(action)] = self._outgoing(action).receive_back(
            self._signature(action)
        )

    def _last_backward(self) -> None:
        """Gradients may leave as soon as they are there, if no other stage's could be before them
        on one rank and after them on another."""
        if self._step.updating and len(self._setup.modules) == 1:
            for reduction in self._reductions():
                reduction.last_backward()

    def _reduce(self, action: Action) -> None:
        if self._step.updating and action.stage in self._setup.reductions:
            self._setup.reductions[action.stage].start()

    def _reductions(self) -> list[Reduction]:
        """Begun in the order of the list, which is one order for all ranks, and ended in this."""
        reductions = self._setup.reductions
        return [reductions[s] for s in sorted(reductions)] if self._step.updating else []

    def _held(self, action: Action) -> Held:
        return self._setup.held[action.direction, action.stage]

    def _incoming(self, action: Action) -> Boundary:
        boundary = self._held(action).incoming
        assert boundary is not None
        return boundary

    def _outgoing(self, action: Action) -> Boundary:
        boundary = self._held(action).outgoing
        assert boundary is not None
        return boundary

    # ── micro-batches ────────────────────────────────────────────────────────────────────────

    def _samples(self, action: Action) -> range:
        return self._step.batch.samples(self._setup.replica, _micro_batch(action))

    def _number(self, action: Action) -> int:
        return self._step.batch.number(self._setup.replica, _micro_batch(action))

    def _signature(self, action: Action) -> Signature:
        return self._step.batch.signature(self._samples(action), self._step.training)


def _micro_batch(action: Action) -> int:
    assert action.micro_batch is not None
    return action.micro_batch


def _place(action: Action) -> Place:
    return action.direction, action.stage, _micro_batch(action)


def _check(loss: Any) -> None:
    if not isinstance(loss, Tensor) or isinstance(loss, Tile) or loss.numel() != 1:
        what = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss)
        raise PlanError(f"the loss must be one number, a tensor of one element; it is {what}")
