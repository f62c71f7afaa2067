"""The most memory of a rank: its own list of actions is played, action by action.

base │ parameters, optimizer's state, what the program itself needs
  RF │ + room for what arrives, as much ahead as the list posts receives
   F │ + what backward wants, and on the way what is computed
  SF │ − the output, where nothing has kept it
B  R │ the way back, and the gradients
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..schedule import Action, Kind
from .costs import StageCosts


@dataclass(frozen=True)
class Usage:
    """Of a rank, in bytes, at its highest."""

    activations: int
    """Kept for backward, and what is being computed."""
    messages: int
    """Between stages: what has arrived, and what is to be sent."""
    gradients: int
    parameters: int = 0
    optimizer: int = 0
    transport: int = 0
    """Memory of the transport itself."""
    runtime: int = 0
    """The program: libraries, compiled kernels."""

    @property
    def total(self) -> int:
        parts = (self.activations, self.messages, self.gradients, self.parameters)
        return sum((*parts, self.optimizer, self.transport, self.runtime))


@dataclass(frozen=True)
class Held:
    """A stage as a rank has it."""

    costs: StageCosts
    sources: int
    """Ranks from which a micro-batch's input comes; 0: from the stage before, on this rank."""
    fed: bool
    """Whether there is a stage before."""
    next: bool
    """Whether there is a stage behind, ..."""
    sends: bool
    """... and on other ranks."""
    reduced: bool
    """Whether other ranks have the stage, too."""


def highest(actions: Sequence[Action], held: Mapping[int, Held], lazy: bool) -> Usage:
    """`lazy`: room for what arrives counts only when something is written there."""
    play = _Play(held, lazy)
    backwards = (a for a in actions if a.kind in (Kind.BACKWARD, Kind.WEIGHT))
    play.last = set({action.stage: action for action in backwards}.values())
    for action in actions:
        play.play(action)
    return play.most


class _Play:
    def __init__(self, held: Mapping[int, Held], lazy: bool) -> None:
        self.held, self.lazy = held, lazy
        self.activations = self.messages = self.gradients = 0
        self.trained: set[int] = set()
        self.last: set[Action] = set()
        self.most = Usage(0, 0, 0)

    def see(self, computed: int = 0) -> None:
        now = Usage(self.activations + computed, self.messages, self.gradients)
        if now.total > self.most.total:
            self.most = now

    def play(self, action: Action) -> None:
        stage = self.held[action.stage]
        kind, costs = action.kind, stage.costs
        if kind is Kind.RECEIVE_FORWARD:
            self.messages += self._posted(costs.entrance, stage.sources)
        elif kind is Kind.RECEIVE_BACKWARD:
            self.messages += self._posted(costs.exit_gradient, 1)
        elif kind is Kind.FORWARD:
            self._forward(action.stage, stage, costs)
        elif kind is Kind.SEND_FORWARD:
            self.messages -= costs.exit
        elif kind is Kind.SEND_BACKWARD:
            self.messages -= costs.entrance_gradient
        elif kind is Kind.REDUCE:
            self.messages += costs.gradients * stage.reduced
        else:
            self._backward(action, stage, costs)
        self.see()

    def _posted(self, size: int, sources: int) -> int:
        """Several pieces are put together in memory that is cleared first."""
        if sources > 1:
            return size if self.lazy else 2 * size
        return 0 if self.lazy else size

    def _forward(self, number: int, stage: Held, costs: StageCosts) -> None:
        if stage.sources:
            if stage.sources > 1:
                self.see(costs.entrance * self.lazy)
            self.messages -= self._posted(costs.entrance, stage.sources)
        elif stage.fed:
            self.messages -= self.held[number - 1].costs.exit
        self.activations += costs.entrance
        self.see(costs.forward_peak)
        self.activations += costs.kept + costs.entrance_kept - costs.entrance
        if stage.next:
            self.messages += costs.exit

    def _backward(self, action: Action, stage: Held, costs: StageCosts) -> None:
        first, weights = action.stage not in self.trained, action.kind is Kind.WEIGHT
        if stage.next and not weights:
            self.messages -= self._posted(costs.exit_gradient, 1)
            if not stage.sends:
                self.messages -= costs.exit_gradient * self.lazy
        if action.kind is (Kind.INPUT if costs.later else Kind.WEIGHT) and not costs.splits:
            return
        flat = stage.reduced and action in self.last and len(self.held) == 1
        self.see(costs.backward_peak(int(weights), first, flat))
        if action.kind is Kind.INPUT and costs.splits:
            self.activations += costs.held_between_parts
        else:
            self.activations -= costs.kept + costs.entrance_kept
            self.activations -= costs.held_between_parts if weights else 0
            if first:
                self.trained.add(action.stage)
                self.gradients += costs.gradients
        if stage.fed and not weights:
            self.messages += costs.entrance_gradient
