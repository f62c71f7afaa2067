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
        # Both ends of a message are one event, known by its send.
        self.events = [[a.counterpart if a.kind.receives else a for a in row] for row in lists]
        self.position = [0] * len(lists)
        self.has: list[set[Action]] = [set() for _ in lists]  # results, own and received
        self.participants: dict[Action, list[int]] = defaultdict(list)
        for actor, events in enumerate(self.events):
            for event in events:
                self.participants[event].append(actor)
        self.check_ends()

    def check_ends(self) -> None:
        """Every send has a receive, every receive a send, and nobody does anything twice."""
        everything = {action for actions in self.lists for action in actions}
        for actor, actions in enumerate(self.lists):
            seen: set[Action] = set()
            for action, event in zip(actions, self.events[actor], strict=True):
                if (action.kind.sends or action.kind.receives) and (
                    action.counterpart not in everything
                ):
                    other = action.counterpart
                    raise ScheduleError(f"actor {actor} has {action}, and no actor has {other}")
                if event in seen:
                    raise ScheduleError(f"actor {actor} has {action} twice, or with its other end")
                seen.add(event)

    def run(self) -> None:
        awake = list(range(len(self.lists)))
        while awake:
            event = self.next_event(awake.pop())
            if event is None:
                continue
            together = self.participants[event]
            if all(self.next_event(actor) == event for actor in together):
                for actor in together:
                    self.step(actor)
                awake += together
        waits = [line for actor in range(len(self.lists)) for line in self.waits(actor)]
        if waits:
            raise ScheduleError("these lists would wait for ever: " + "; ".join(waits))

    def next_event(self, actor: int) -> Action | None:
        events, position = self.events[actor], self.position[actor]
        return events[position] if position < len(events) else None

    def step(self, actor: int) -> None:
        action = self.lists[actor][self.position[actor]]
        self.position[actor] += 1
        has = self.has[actor]
        for need in self.needed(action):
            if need not in has:
                raise ScheduleError(f"actor {actor} has {action} before it can have {need}")
        if action.kind in _BRINGS:
            kind, offset = _BRINGS[action.kind]
            has.add(action.at(kind, action.stage + offset))
        elif not action.kind.sends:
            has.update(completes(action))
        if action.kind.computes and Action(Kind.REDUCE, action.stage) in has:
            raise ScheduleError(f"actor {actor} has {action} after the reduction of its stage")

    def needed(self, action: Action) -> tuple[Action, ...]:
        if action.kind.computes:
            return needs(action, self.stages)
        return (action.at(_CARRIES[action.kind]),) if action.kind.sends else ()

    def waits(self, actor: int) -> list[str]:
        event = self.next_event(actor)
        if event is None:
            return []
        action = self.lists[actor][self.position[actor]]
        others = " and ".join(
            f"actor {other}, which {self.stands(other)}"
            for other in self.participants[event]
            if self.next_event(other) != event
        )
        return [f"actor {actor} stands before {action} and waits for {others}"]

    def stands(self, actor: int) -> str:
        rest = self.lists[actor][self.position[actor] :]
        return f"stands before {rest[0]}" if rest else "is through"
