"""From what is computed to what is executed: sends, receives and reductions, in one global order.

NCCL has no message tags, and neither have collectives: order is the protocol. So the order is
made once, for everybody, and each participant's list is its part of it:

    everybody   0F0  0SF0→1RF0  1F0  1B0  1SB0→0RB0  1R  0B0  0R
    actor 0     0F0  0SF0                      0RB0      0B0  0R
    actor 1               1RF0  1F0  1B0  1SB0       1R

A message is one event of two participants; a reduction is one event of all that hold a copy of
the stage; a forward on a spatial stage is one event of all its tiles, which exchange halos.

**What is guaranteed.** Execute the lists one action after the other, and let every event wait until
all its participants have come to it, with no buffers at all: this cannot deadlock, however long
anything takes. (Of the events not yet done, look at the first in the global order. Each of its
participants has done everything before it, so all of them stand before it.) Therefore it cannot
deadlock either on any executor that waits for less, if it *starts* the communication of a list in
the order of the list:

- sends that return at once, receives that block (MPI, Gloo, threads with queues);
- sends and receives that are only posted, and waited for before the data is used or at the end of
  the step (isend and irecv; NCCL on a stream, whether one for all peers or one for each).

For every pair of participants, both directions together, the messages stand in the same order at
both ends. So `batch_isend_irecv` may join neighbouring messages, and nothing needs a tag.

**What is made for speed.** A receive stands before the work during which the message arrives, if
forwards take 1 and backwards 2: posted there, it is ready when the sender is. Wait for it where
the data is needed. An executor whose receives block where they stand works, and is slower.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from .action import Action, Kind, completes, message
from .schedule import Schedule
from .simulate import simulate

Event: TypeAlias = tuple[Action, ...]
"""What happens at once: `(compute,)`, `(send, receive)` or `(reduction,)`."""


@dataclass(frozen=True)
class Program:
    """A schedule with its communication. Made by `lower`."""

    schedule: Schedule
    events: tuple[Event, ...]

    @cached_property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """The list of every actor."""
        placement = self.schedule.placement
        return tuple(self.part(placement.held(actor)) for actor in range(placement.actors))

    def __str__(self) -> str:
        lists = (" ".join(map(str, actions)) for actions in self.actions)
        return "\n".join(f"actor {actor}: {line}" for actor, line in enumerate(lists))

    def part(self, held: Collection[tuple[int, int]]) -> tuple[Action, ...]:
        """The list of a participant that holds these `(direction, stage)` pairs.

        It need not be an actor: where stages have different numbers of tiles, a rank of a
        bidirectional pipeline may hold parts of stages of different actors, and the guarantee
        holds all the same. Neighbouring stages of one direction share all of their participants
        or none; between those that share all, there is no message.
        """
        stages = {stage for _, stage in held}
        held = set(held)
        actions = []
        for event in self.events:
            if event[0].kind is Kind.REDUCE:
                mine = [event[0]] if event[0].stage in stages else []
            else:
                mine = [a for a in event if (a.direction, a.stage) in held]
            if len(mine) < 2:
                actions += mine
        return tuple(actions)


def lower(schedule: Schedule) -> Program:
    """Play the schedule once, and write down what happened in the order in which it happened.

    At the same moment, work ends before its messages go out, those with the shortest way to go
    before the others: so an actor that passes on a row of micro-batches sends before it receives.
    A stage is reduced as soon as the last gradient of its parameters is there, in all directions.
    """
    placement, stages = schedule.placement, schedule.stages
    moments: list[tuple[tuple[float, int, int, int], Event]] = []
    last_gradient: dict[int, float] = {}
    for actor, spans in enumerate(simulate(schedule).spans):
        for action, stop in ((span.action, span.stop) for span in spans):
            moments.append(((stop, 0, 0, actor), (action,)))
            send = message(action, stages)
            if send is not None:
                to_go = stages - send.stage if send.kind is Kind.SEND_FORWARD else send.stage
                moments.append(((stop, 1, to_go, actor), (send, send.counterpart)))
            if action.at(Kind.WEIGHT) in completes(action):
                last_gradient[action.stage] = max(stop, last_gradient.get(action.stage, 0.0))
    for stage, stop in last_gradient.items():
        host = placement.hosts(stage)[0]
        moments.append(((stop, 2, host, stage), (Action(Kind.REDUCE, stage),)))
    moments.sort(key=lambda moment: moment[0])
    return Program(schedule, tuple(event for _, event in moments))
