"""Order is the protocol: the same at both ends of every pair, and nobody waits for ever."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.schedule import (
    Action,
    Kind,
    Program,
    Schedule,
    lower,
    make_schedule,
    rendezvous,
    simulate,
)
from mpi4dl.schedule.action import needs
from schedule.configurations import NAMES, of

Lists = Sequence[Sequence[Action]]

schedules = st.builds(of, st.sampled_from(NAMES), st.integers(1, 8), st.integers(1, 16))


def actor_of(program: Program, action: Action) -> int:
    return program.schedule.placement.actor(action)


def peer(program: Program, action: Action) -> int:
    return actor_of(program, action.counterpart)


# ── what is in the lists ─────────────────────────────────────────────────────────────────────────


def test_the_example_of_the_module():
    program = lower(make_schedule("gpipe", 2, 1))
    assert str(program) == "actor 0: 0F0 0SF0 0RB0 0B0 0R\nactor 1: 1RF0 1F0 1B0 1SB0 1R"
    assert ["→".join(map(str, event)) for event in program.events] == (
        ["0F0", "0SF0→1RF0", "1F0", "1B0", "1SB0→0RB0", "1R", "0B0", "0R"]
    )


@given(schedules)
def test_the_work_is_that_of_the_schedule_in_its_order(schedule):
    for listed, planned in zip(lower(schedule).actions, schedule.actions, strict=True):
        assert tuple(a for a in listed if a.kind.computes) == planned


@given(schedules)
def test_there_is_a_message_wherever_a_neighbouring_stage_is_on_another_actor(schedule):
    found = sorted(str(a) for row in lower(schedule).actions for a in row if a.kind.sends)
    expected = []
    for i, d in enumerate(schedule.directions):
        row = schedule.placement.table[d]
        for s in range(schedule.stages - 1):
            if row[s] != row[s + 1]:
                expected.append(str(Action(Kind.SEND_FORWARD, s, i, d)))
                expected.append(str(Action(Kind.SEND_BACKWARD, s + 1, i, d)))
    assert found == sorted(expected)


@given(schedules)
def test_a_stage_is_reduced_once_as_soon_as_its_last_gradient_is_there(schedule):
    for row in lower(schedule).actions:
        stages = {a.stage for a in row if a.kind.computes}
        reductions = [a.stage for a in row if a.kind is Kind.REDUCE]
        assert sorted(reductions) == sorted(stages | set(reductions))
        for stage in stages:
            here = row.index(Action(Kind.REDUCE, stage))
            assert not any(a.kind.computes and a.stage == stage for a in row[here:])
            if schedule.placement.directions == 1:  # else it waits for the other copy
                last = next(a for a in reversed(row[:here]) if a.kind.computes)
                assert last.stage == stage


@pytest.mark.parametrize("name", ["gems", "chimera", "zb-chimera"])
def test_both_copies_of_a_stage_are_reduced_in_the_same_order(name):
    """Actors a and P-1-a have two reductions with each other: stages a and P-1-a."""
    lists = lower(of(name, 4, 4)).actions
    for actor in range(4):
        mine, theirs = (
            [a for a in lists[which] if a.kind is Kind.REDUCE] for which in (actor, 3 - actor)
        )
        assert mine == theirs
        assert {a.stage for a in mine} == {actor, 3 - actor}


# ── order ────────────────────────────────────────────────────────────────────────────────────────


@given(schedules)
def test_for_every_pair_the_messages_stand_in_the_same_order_at_both_ends(schedule):
    program = lower(schedule)

    def between(actor: int, other: int) -> list[Action]:
        """Everything that `actor` exchanges with `other`, named by its send."""
        return [
            a.counterpart if a.kind.receives else a
            for a in program.actions[actor]
            if (a.kind.sends or a.kind.receives) and peer(program, a) == other
        ]

    for one, other in combinations(range(schedule.actors), 2):
        assert between(one, other) == between(other, one)


@given(schedules)
def test_without_any_buffer_nobody_waits_for_ever(schedule):
    rendezvous(lower(schedule).actions, schedule.stages)


def test_what_is_passed_on_is_sent_before_the_next_is_received():
    row = str(lower(make_schedule("gpipe", 3, 3))).splitlines()[1]
    assert row.startswith("actor 1: 1RF0 1F0 1SF0 1RF1 1F1 1SF1 1RF2 1F2 1SF2")


def test_receives_stand_before_the_work_during_which_the_message_arrives():
    row = str(lower(make_schedule("gems", 3, 1, times=2))).splitlines()[1]
    assert "1RF1' 1B0 1SB0 1F1'" in row  # 0F1' ends on actor 2 while actor 1 is in 1B0


# ── executed by machines that are not the hardest ────────────────────────────────────────────────


class Machine:
    """Sends return at once; receives block, and get whatever comes next from that peer: no tags.

    Actors take turns at random, as processes do.
    """

    def __init__(self, program: Program, seed: int) -> None:
        self.program = program
        self.random = random.Random(seed)
        self.wires: dict[tuple[int, int], deque[Action]] = defaultdict(deque)
        self.has: list[set[Action]] = [set() for _ in program.actions]
        self.rest = [deque(row) for row in program.actions]

    def run(self) -> None:
        while any(self.rest):
            able = [a for a, rest in enumerate(self.rest) if rest and self.can_start(a, rest[0])]
            assert able, [str(rest[0]) for rest in self.rest if rest]
            actor = self.random.choice(able)
            for _ in range(self.random.randint(1, 5)):
                if self.rest[actor] and self.can_start(actor, self.rest[actor][0]):
                    self.do(actor, self.rest[actor].popleft())
        assert not any(self.wires.values())

    def can_start(self, actor: int, action: Action) -> bool:
        return not action.kind.receives or bool(self.wires[peer(self.program, action), actor])

    def do(self, actor: int, action: Action) -> None:
        if action.kind.sends:
            self.wires[actor, peer(self.program, action)].append(action)
        elif action.kind.receives:
            assert self.wires[peer(self.program, action), actor].popleft() == action.counterpart
            self.has[actor].add(action)
        elif action.kind.computes:
            self.check_inputs(actor, action)

    def check_inputs(self, actor: int, action: Action) -> None:
        for need in needs(action, self.program.schedule.stages):
            if actor_of(self.program, need) != actor:
                forward = need.kind is Kind.FORWARD
                kind = Kind.RECEIVE_FORWARD if forward else Kind.RECEIVE_BACKWARD
                assert action.at(kind) in self.has[actor]


@given(schedules, st.integers(0, 2**32))
def test_receives_that_block_and_sends_that_do_not(schedule, seed):
    Machine(lower(schedule), seed).run()


@given(schedules)
def test_one_stream_for_each_pair_on_which_messages_complete_in_order(schedule):
    """Everything is posted where it stands; work waits for its data only. The n-th message that
    one end posts for a pair is the n-th of the other end, or this fails; as on NCCL."""
    program = lower(schedule)
    posted: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for actor, row in enumerate(program.actions):
        for action in row:
            if action.kind.sends or action.kind.receives:
                posted[actor, peer(program, action)].append(action)
    for (one, other), ours in posted.items():
        theirs = posted[other, one]
        assert ours == [action.counterpart for action in theirs]


# ── participants that are not actors ─────────────────────────────────────────────────────────────


def ranks_of(schedule: Schedule, tiles: Sequence[int], mirror: bool) -> list[set[tuple[int, int]]]:
    """Stage s on `tiles[s]` ranks, one after the other; mirrored: rank r has what W-1-r has."""
    held: list[set[tuple[int, int]]] = [set() for _ in range(sum(tiles))]
    rank = 0
    for stage, count in enumerate(tiles):
        for _ in range(count):
            held[rank].add((0, stage))
            if mirror:
                held[len(held) - 1 - rank].add((1, stage))
            rank += 1
    return held


@pytest.mark.parametrize("name", ["gems", "chimera", "zb-chimera"])
@pytest.mark.parametrize("tiles", [(4, 1), (4, 1, 1), (4, 2, 1, 1), (1, 4), (2, 3, 2), (4, 4)])
def test_mirrored_spatial_stages_share_ranks_with_stages_of_other_actors(name, tiles):
    """With 4 tiles and 1 rank, ranks 1 to 3 have the first stage in both directions."""
    for micro_batches in (1, 2, 3, 8):
        schedule = of(name, len(tiles), micro_batches)
        mirror = schedule.placement.directions == 2
        program = lower(schedule)
        rendezvous([program.part(h) for h in ranks_of(schedule, tiles, mirror)], schedule.stages)


@given(schedules, st.data())
def test_any_participants_at_all(schedule, data):
    """In either direction, ranks form any groups, and each group has any of the stages."""
    ranks = data.draw(st.integers(1, 6))
    held: list[set[tuple[int, int]]] = [set() for _ in range(ranks)]
    for direction in range(schedule.placement.directions):
        groups = data.draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks))
        for stage in range(schedule.stages):
            mine = data.draw(st.sampled_from(groups))
            for rank in range(ranks):
                if groups[rank] == mine:
                    held[rank].add((direction, stage))
    program = lower(schedule)
    rendezvous([program.part(h) for h in held], schedule.stages)


@given(schedules)
def test_lowering_follows_the_simulation(schedule):
    """What ends earlier stands earlier, so the lists suit the times they were made for."""
    stop = {s.action: s.stop for spans in simulate(schedule).spans for s in spans}
    times = [stop[event[0]] for event in lower(schedule).events if event[0] in stop]
    assert times == sorted(times)
