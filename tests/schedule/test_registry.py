"""Schedules by name, and what is said when there is none."""

from __future__ import annotations

import pytest

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import SCHEDULES, loop, make_schedule, vee


def test_the_names():
    assert list(SCHEDULES) == (
        ["layer", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "gems", "chimera", "zb-chimera"]
    )
    assert all(recipe.about for recipe in SCHEDULES.values())


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_as_many_stages_and_micro_batches_as_are_asked_for(name):
    schedule = make_schedule(name, 6, 4)
    assert (schedule.name, schedule.stages, schedule.micro_batches) == (name, 6, 4)
    assert schedule.actors == 6 // SCHEDULES[name].per_actor


def test_placements():
    assert make_schedule("zb-v", 6, 2).placement == vee(3)
    assert make_schedule("interleaved", 6, 2).placement == loop(3, 2)
    assert make_schedule("interleaved", 6, 2, stages_per_actor=3).placement == loop(2, 3)
    assert make_schedule("chimera", 6, 2).placement == loop(6).mirrored()
    assert make_schedule("gems", 6, 2, times=2).placement == loop(6).mirrored()
    assert make_schedule("gems", 6, 2, times=1).placement == loop(6)


@pytest.mark.parametrize("name", ["gems", "chimera", "zb-chimera"])
def test_times_repeats_the_batch(name):
    schedule = make_schedule(name, 3, 2, times=3)
    assert schedule.micro_batches == 6
    assert set(schedule.directions) == {0, 1}


def test_printed():
    assert str(make_schedule("zb-v", 6, 4)) == "zb-v: 6 stages on 3 actors, 4 micro-batches"
    assert str(make_schedule("layer", 1, 1)) == "layer: 1 stage on 1 actor, 1 micro-batch"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"name": "1f1"}, "there is no schedule '1f1', only layer, .*; did you mean 1f1b"),
        ({"name": "ZB_V"}, "did you mean zb-v"),
        ({"name": "xyz"}, "zb-chimera$"),
        ({"name": "zb-v", "stages": 5}, "5 stages cannot be shared out like that; use 4 or 6 st"),
        ({"name": "zb-v", "stages": 1}, "1 stage cannot be shared out like that; use 2 stages"),
        (
            {"name": "interleaved", "stages": 8, "stages_per_actor": 3},
            "use 6 or 9 stages, or stages_per_actor 2 or 4 or 8",
        ),
        ({"name": "interleaved", "stages": 7}, "use 6 or 8 stages, or stages_per_actor 7"),
        (
            {"name": "interleaved", "stages_per_actor": 1},
            "interleaved puts at least 2 stages on every actor, and stages_per_actor is 1",
        ),
        ({"name": "1f1b", "stages_per_actor": 2}, "1f1b puts 1 stage on every actor.*interleaved"),
        ({"name": "zb-v", "stages_per_actor": 3}, "zb-v puts 2 stages on every actor"),
        (
            {"name": "gpipe", "times": 2},
            "times is 2: use 8 micro-batches instead, or one of gems, chimera, zb-chimera",
        ),
        ({"stages": 0}, "stages is 0; it must be at least 1"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"name": "gems", "times": 0}, "times is 0"),
    ],
)
def test_what_cannot_be_made_says_what_can(call, why):
    arguments = {"name": "gpipe", "stages": 4, "micro_batches": 4, **call}
    with pytest.raises(ScheduleError, match=why):
        make_schedule(**arguments)
