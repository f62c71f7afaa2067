"""What an actor does: one step of work or one message, written `1F0`.

1 F 0 '
│ │ │ └─ only in the mirrored direction
│ │ └─── micro-batch (none for R)
│ └───── kind
└─────── stage
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from ..errors import ScheduleError


class Kind(Enum):
    """The kinds of actions. The first four compute; lowering adds the others."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"  # the part of a backward that others wait for: the gradient of the stage's input
    WEIGHT = "W"  # the part that nobody waits for: the gradients of the stage's parameters
    SEND_FORWARD = "SF"
    RECEIVE_FORWARD = "RF"
    SEND_BACKWARD = "SB"
    RECEIVE_BACKWARD = "RB"
    REDUCE = "R"

    @property
    def computes(self) -> bool:
        return self in COMPUTE

    @property
    def sends(self) -> bool:
        return self in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD)

    @property
    def receives(self) -> bool:
        return self in (Kind.RECEIVE_FORWARD, Kind.RECEIVE_BACKWARD)


COMPUTE = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)

# (kind at the other end, where the other end is): activations go up a stage, gradients down.
_OTHER_END = {
    Kind.SEND_FORWARD: (Kind.RECEIVE_FORWARD, 1),
    Kind.RECEIVE_FORWARD: (Kind.SEND_FORWARD, -1),
    Kind.SEND_BACKWARD: (Kind.RECEIVE_BACKWARD, -1),
    Kind.RECEIVE_BACKWARD: (Kind.SEND_BACKWARD, 1),
}

_TEXT = re.compile(r"(\d+)(SF|RF|SB|RB|F|B|I|W)(\d+)('?)|(\d+)R")


@dataclass(frozen=True, slots=True)
class Action:
    """One step. `direction` is 0 for the pipeline as placed and 1 for its mirror image.

    A reduction is of a stage, whichever directions it is trained in: it has no micro-batch and
    no direction.
    """

    kind: Kind
    stage: int
    micro_batch: int | None = None
    direction: int = 0

    @classmethod
    def parse(cls, text: str) -> Action:
        """The inverse of `str`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ScheduleError(
                f"{text!r} is no action: write stage, kind and micro-batch, such as 1F0, with ' "
                "for the mirrored direction, or stage and R for a reduction"
            )
        stage, kind, micro_batch, mirrored, reduced = match.groups()
        if reduced is not None:
            return cls(Kind.REDUCE, int(reduced))
        return cls(Kind(kind), int(stage), int(micro_batch), len(mirrored))

    def at(self, kind: Kind, stage: int | None = None) -> Action:
        """Another action on the same micro-batch."""
        return Action(
            kind, self.stage if stage is None else stage, self.micro_batch, self.direction
        )

    @property
    def counterpart(self) -> Action:
        """The other end of a message."""
        kind, offset = _OTHER_END[self.kind]
        return self.at(kind, self.stage + offset)

    def __str__(self) -> str:
        number = "" if self.micro_batch is None else self.micro_batch
        return f"{self.stage}{self.kind.value}{number}{chr(39) * self.direction}"


def needs(action: Action, stages: int) -> tuple[Action, ...]:
    """What must be finished before `action` may start.

        F ─▶ F ─▶ F          stage 0, 1, 2
        ▼    ▼    ▼
        I ◀─ I ◀─ I
        ▼    ▼    ▼
        W    W    W

    A full backward is I and W at once (`completes`), so it waits for what I waits for.
    """
    last = action.stage == stages - 1
    if action.kind is Kind.FORWARD:
        return () if action.stage == 0 else (action.at(Kind.FORWARD, action.stage - 1),)
    if action.kind is Kind.WEIGHT:
        return (action.at(Kind.INPUT),)
    forward = action.at(Kind.FORWARD)
    return (forward,) if last else (forward, action.at(Kind.INPUT, action.stage + 1))


def completes(action: Action) -> tuple[Action, ...]:
    """What is finished when `action` is, in the terms of `needs`."""
    if action.kind is Kind.BACKWARD:
        return (action.at(Kind.INPUT), action.at(Kind.WEIGHT))
    return (action,)


def activations(action: Action) -> int:
    """How many more activations an actor holds after an action: kept until the last gradient."""
    if action.kind is Kind.FORWARD:
        return 1
    return -1 if action.kind in (Kind.BACKWARD, Kind.WEIGHT) else 0


def message(action: Action, stages: int) -> Action | None:
    """The send that follows an action: its output, or its input's gradient, if a stage needs it."""
    if action.kind is Kind.FORWARD and action.stage < stages - 1:
        return action.at(Kind.SEND_FORWARD)
    if action.kind in (Kind.BACKWARD, Kind.INPUT) and action.stage > 0:
        return action.at(Kind.SEND_BACKWARD)
    return None
