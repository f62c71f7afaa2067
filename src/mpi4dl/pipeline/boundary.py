"""The wires between a stage and the next, of one direction of one replica.

The ranks of the first stage and those of the second are numbered in this order, and each tensor
is one Transfer over them. Its backward goes the same way back, and what arrives for the same
pixels is added up.

What travels is described once, by the first rank of the stage, before the first message of its
kind; from then on both ends know it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..comm.communicator import Communicator, Message, Pending
from ..comm.exchange import Index, RankPlan, rank_plan
from ..comm.objects import receive, send
from ..errors import PlanError
from .arrangement import Arrangement, Shape, Signature, crossing
from .description import Description, Leaf

Arrange = Callable[[Leaf, Signature], Arrangement | None]

_AHEAD = 4
"""Micro-batches that a rank may have sent in one direction before the first of them has left. Some
transports read what is sent until then, so more would be more memory the more there are."""


@dataclass
class Arriving:
    """A tensor under way to this rank, piece by piece."""

    whole: Tensor
    pieces: list[tuple[Tensor, Index]]
    pending: Pending

    def wait(self) -> None:
        self.pending.wait()
        for piece, where in self.pieces:
            self.whole[where] += piece
        self.pieces.clear()


@dataclass(frozen=True)
class Route:
    """What this rank does for one kind of micro-batch."""

    description: Description
    after: tuple[Arrangement | None, ...]  # how each tensor lies on the second stage
    plans: tuple[RankPlan, ...]


class Boundary:
    """`sources` and `targets` are the ranks of the two stages, in the order of their tiles."""

    def __init__(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        arrange: Arrange,
        world: Communicator,
        device: torch.device,
    ) -> None:
        self._sources, self._targets = tuple(sources), tuple(targets)
        self._ranks = (*sources, *targets)
        self._arrange, self._world, self._device = arrange, world, device
        self._routes: dict[Signature, Route] = {}
        self._under_way: deque[list[Pending]] = deque()

    # ── forward ──────────────────────────────────────────────────────────────────────────────

    def send(self, key: Signature, description: Description, parts: Sequence[Tensor]) -> None:
        if key not in self._routes:
            self._routes[key] = self._route(key, description)
            self._introduce(description)
        route = self._routes[key]
        if route.description != description:
            raise PlanError(
                f"a stage gave {description}, and {route.description} for another micro-batch of "
                "the same shape: what passes between stages must depend on shapes alone"
            )
        self._send(
            [(self._ranks[peer], part.detach()[where]) for peer, where in plan.sends]
            for part, plan in zip(parts, route.plans, strict=True)
        )

    def receive(self, key: Signature) -> tuple[Route, list[Arriving]]:
        """Posted; the caller waits when it needs the values."""
        if key not in self._routes:
            self._routes[key] = self._route(key, self._introduced())
        route = self._routes[key]
        leaves = zip(route.description.tensors, route.plans, strict=True)
        return route, [self._post(plan.wanted, leaf, plan.receives) for leaf, plan in leaves]

    # ── backward ─────────────────────────────────────────────────────────────────────────────

    def send_back(self, key: Signature, gradients: Sequence[Tensor]) -> None:
        """`gradients` are those of the tensors that want one."""
        self._send(
            [(self._ranks[peer], gradient[where]) for peer, where in plan.receives]
            for (_, plan), gradient in zip(self._differentiable(key), gradients, strict=True)
        )

    def receive_back(self, key: Signature) -> list[Arriving]:
        """What all sources have alike has its gradient at the first; that of the others is zero."""
        return [
            self._post(leaf.shape if leaf.before is None else plan.own, leaf, plan.sends)
            for leaf, plan in self._differentiable(key)
        ]

    # ── both ─────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Everything that was sent has left."""
        self._await_all_but(0)

    def _send(self, messages: Iterable[list[Message]]) -> None:
        """Of each tensor that a micro-batch passes on. As in the lists of a schedule every event
        may wait for all who take part in it, so may a send for one that was long before."""
        self._under_way.append([self._world.start(sends, []) for sends in messages])
        self._await_all_but(_AHEAD)

    def _await_all_but(self, count: int) -> None:
        while len(self._under_way) > count:
            for pending in self._under_way.popleft():
                pending.wait()

    def _differentiable(self, key: Signature) -> list[tuple[Leaf, RankPlan]]:
        route = self._routes[key]
        pairs = zip(route.description.tensors, route.plans, strict=True)
        return [(leaf, plan) for leaf, plan in pairs if leaf.wants_gradient]

    def _post(self, shape: Shape, leaf: Leaf, receives: Sequence[tuple[int, Index]]) -> Arriving:
        whole = torch.empty(shape, dtype=leaf.dtype, device=self._device)
        if len(receives) == 1 and whole[receives[0][1]].shape == whole.shape:
            pieces: list[tuple[Tensor, Index]] = []
            messages = [(self._ranks[receives[0][0]], whole)]
        else:
            whole.zero_()
            pieces = [(torch.empty_like(whole[w]).contiguous(), w) for _, w in receives]
            peers = (self._ranks[peer] for peer, _ in receives)
            messages = [(peer, piece) for peer, (piece, _) in zip(peers, pieces, strict=True)]
        return Arriving(whole, pieces, self._world.start([], messages))

    def _route(self, key: Signature, description: Description) -> Route:
        place = self._ranks.index(self._world.rank)
        after, plans = [], []
        for leaf in description.tensors:
            lies = self._arrange(leaf, key)
            moves = crossing(leaf.shape, leaf.before, len(self._sources), lies, len(self._targets))
            dims = tuple(range(-len(leaf.shape), 0))
            after.append(lies)
            plans.append(rank_plan(moves, place, dims, len(leaf.shape)))
        return Route(description, tuple(after), tuple(plans))

    def _introduce(self, description: Description) -> None:
        if self._world.rank == self._sources[0]:
            self._under_way.append(send(description, self._targets, self._world, self._device))

    def _introduced(self) -> Description:
        description: Description = receive(self._sources[0], self._world, self._device)
        return description
