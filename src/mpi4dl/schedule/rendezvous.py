"""Execute lists of actions under the hardest conditions: no buffers, nothing at the same time.

Each participant stands before one action. A message happens when all its senders and receivers
stand before it, a reduction (or a forward on several tiles) when all that have it do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..errors import ScheduleError
from .action import Action, Kind, completes, needs

_BRINGS = {
    Kind.RECEIVE_FORWARD: (Kind.FORWARD, -1),
    Kind.RECEIVE_BACKWARD: (Kind.INPUT, 1),
}
_CARRIES = {Kind.SEND_FORWARD: Kind.FORWARD, Kind.SEND_BACKWARD: Kind.INPUT}


def rendezvous(lists: Sequence[Sequence[Action]], stages: int) -> None:
    """Play the lists to their end, or raise a ScheduleError that says who waits for whom."""
    _Meeting(lists, stages).run()


class _Meeting:
    def __init__(self, lists: Sequence[Sequence[Action]], stages: int) -> None:
        self.lists = lists
        self.stages = stages
        self.position = [0] * len(lists)
        self.has: list[set[Action]] = [set() for _ in lists]  # results, own and received
        self.participants: dict[Action, list[int]] = defaultdict(list)
        for actor, actions in enumerate(lists):
            for action in actions:
                self.participants[_event(action)].append(actor)
        self.check_ends()

    def check_ends(self) -> None:
        """Every send has a receive, every receive a send, and nobody does anything twice."""
        everything = [{*actions} for actions in self.lists]
        for actor, actions in enumerate(self.lists):
            for action in actions:
                ends = (action.counterpart,) if action.kind.sends or action.kind.receives else ()
                if not all(any(end in other for other in everything) for end in ends):
                    raise ScheduleError(
                        f"actor {actor} has {action}, and no actor has {ends[0]}, the other end"
                    )
                if self.participants[_event(action)].count(actor) > 1:
                    raise ScheduleError(f"actor {actor} has {action} twice, or with its other end")

    def head(self, actor: int) -> Action | None:
        actions = self.lists[actor]
        return actions[self.position[actor]] if self.position[actor] < len(actions) else None

    def run(self) -> None:
        awake = list(range(len(self.lists)))
        while awake:
            action = self.head(awake.pop())
            if action is None:
                continue
            together = self.participants[_event(action)]
            heads = [self.head(actor) for actor in together]
            if all(head is not None and _event(head) == _event(action) for head in heads):
                for actor in together:
                    self.step(actor)
                awake += together
        waits = [line for actor in range(len(self.lists)) for line in self.waits(actor)]
        if waits:
            raise ScheduleError("these lists would wait for ever: " + "; ".join(waits))

    def step(self, actor: int) -> None:
        action = self.head(actor)
        assert action is not None
        self.position[actor] += 1
        has = self.has[actor]
        for need in self.wanted(action):
            if need not in has:
                raise ScheduleError(f"actor {actor} has {action} before it can have {need}")
        if action.kind in _BRINGS:
            kind, offset = _BRINGS[action.kind]
            has.add(action.at(kind, action.stage + offset))
        elif not action.kind.sends:
            has.update(completes(action))
        if action.kind.computes and Action(Kind.REDUCE, action.stage) in has:
            raise ScheduleError(f"actor {actor} has {action} after the reduction of its stage")

    def wanted(self, action: Action) -> tuple[Action, ...]:
        if action.kind.computes:
            return needs(action, self.stages)
        return (action.at(_CARRIES[action.kind]),) if action.kind.sends else ()

    def waits(self, actor: int) -> list[str]:
        action = self.head(actor)
        if action is None:
            return []
        others = [
            f"actor {other}, which "
            + (f"stands before {head}" if (head := self.head(other)) else "is through")
            for other in self.participants[_event(action)]
            if (head := self.head(other)) is None or _event(head) != _event(action)
        ]
        return [f"actor {actor} stands before {action} and waits for {' and '.join(others)}"]


def _event(action: Action) -> Action:
    """Both ends of a message are one event, known by its send."""
    return action.counterpart if action.kind.receives else action
