"""Which actor has which stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import Action, Placement, loop, vee

placements = st.one_of(
    st.builds(loop, st.integers(1, 8), st.integers(1, 3)),
    st.builds(vee, st.integers(1, 8)),
    st.integers(1, 8).map(lambda actors: loop(actors).mirrored()),
    st.integers(1, 4).map(lambda actors: vee(actors).mirrored()),
)


def test_placements_of_three_actors():
    assert loop(3).table == ((0, 1, 2),)
    assert loop(3, 2).table == ((0, 1, 2, 0, 1, 2),)
    assert vee(3).table == ((0, 1, 2, 2, 1, 0),)
    assert loop(3).mirrored().table == ((0, 1, 2), (2, 1, 0))


def test_who_has_what():
    placement = loop(3).mirrored()
    assert placement.actor(Action.parse("0F7")) == 0
    assert placement.actor(Action.parse("0F7'")) == 2
    assert placement.held(0) == ((0, 0), (1, 2))
    assert placement.held(1) == ((0, 1), (1, 1))
    assert placement.hosts(0) == (0, 2)
    assert placement.hosts(1) == (1,)
    assert vee(3).held(1) == ((0, 1), (0, 4))


@given(placements)
def test_every_stage_of_every_direction_is_held_once(placement):
    held = [pair for actor in range(placement.actors) for pair in placement.held(actor)]
    assert sorted(held) == [
        (d, s) for d in range(placement.directions) for s in range(placement.stages)
    ]
    assert all(
        actor in placement.hosts(stage)
        for actor in range(placement.actors)
        for _, stage in placement.held(actor)
    )
    assert placement.stages_per_actor * placement.actors == placement.stages


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ((), "at least one stage"),
        (((),), "at least one stage"),
        (((0, 1), (1,)), "different numbers of stages"),
        (((0, 2),), "without gaps"),
    ],
)
def test_placements_that_cannot_be(table, why):
    with pytest.raises(ScheduleError, match=why):
        Placement(table)


def test_no_actors():
    with pytest.raises(ScheduleError, match="actors is 0; it must be at least 1"):
        vee(0)
    with pytest.raises(ScheduleError, match="stages_per_actor is 0"):
        loop(2, 0)
