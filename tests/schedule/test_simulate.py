"""Times, as they follow from costs; and what the numbers of a timeline mean."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import Action, Schedule, Span, Timeline, load, loop, make_schedule, simulate
from mpi4dl.schedule.simulate import shortest
from schedule.configurations import NAMES, of


def when(timeline: Timeline, actor: int) -> list[tuple[str, float, float]]:
    return [(str(s.action), s.start, s.stop) for s in timeline.spans[actor]]


def test_one_micro_batch_goes_there_and_back():
    timeline = simulate(make_schedule("layer", 2, 1))
    assert when(timeline, 0) == [("0F0", 0, 1), ("0B0", 4, 6)]
    assert when(timeline, 1) == [("1F0", 1, 2), ("1B0", 2, 4)]
    assert timeline.makespan == timeline.length == 6
    assert timeline.busy == (3, 3)
    assert timeline.bubble == 0.5


def test_messages_between_actors_take_time_and_those_on_one_actor_none():
    assert when(simulate(make_schedule("layer", 2, 1), latency=0.5), 0) == [
        ("0F0", 0, 1),
        ("0B0", 5, 7),
    ]
    there_and_back = make_schedule("zb-v", 4, 1)  # on two actors: 0, 1, then 2 with 1, 3 with 0
    chain = simulate(there_and_back, latency=10).spans[1]
    assert [str(s.action) for s in chain[:2]] == ["1F0", "2F0"]
    assert chain[0].stop == chain[1].start == 12


def test_costs_may_differ_from_stage_to_stage():
    timeline = simulate(make_schedule("gpipe", 2, 2), forward=[1, 3], backward=[2, 5])
    assert when(timeline, 1) == [("1F0", 1, 4), ("1F1", 4, 7), ("1B0", 7, 12), ("1B1", 12, 17)]
    assert when(timeline, 0)[2:] == [("0B0", 12, 14), ("0B1", 17, 19)]


def test_the_parts_of_a_backward_cost_half_of_it_each_unless_said_otherwise():
    schedule = make_schedule("zb-h1", 1, 1)
    assert when(simulate(schedule, backward=5), 0)[1:] == [("0I0", 1, 3.5), ("0W0", 3.5, 6)]
    assert when(simulate(schedule, backward=[5]), 0)[1:] == [("0I0", 1, 3.5), ("0W0", 3.5, 6)]
    assert when(simulate(schedule, input=3, weight=[7]), 0)[1:] == [("0I0", 1, 4), ("0W0", 4, 11)]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_starts_before_what_it_needs_or_while_its_actor_is_busy(name):
    schedule = of(name, 3, 5)
    timeline = simulate(schedule, forward=1.5, backward=2.5, latency=0.25)
    stop = {str(s.action): s.stop for spans in timeline.spans for s in spans}
    for spans in timeline.spans:
        assert all(a.stop <= b.start for a, b in pairwise(spans))
        for span in spans:
            action = span.action
            if action.kind.value == "F" and action.stage:
                before = str(action.at(action.kind, action.stage - 1))
                assert span.start >= stop[before]
    assert [[s.action for s in spans] for spans in timeline.spans] == list(
        map(list, schedule.actions)
    )


def test_the_length_of_a_leaning_schedule_is_that_of_one_actor():
    spans = [
        tuple(Span(Action.parse(f"{a}F{i}"), a + i, a + i + 1) for i in range(3)) for a in range(4)
    ]
    timeline = Timeline(tuple(spans))
    assert (timeline.makespan, timeline.length, timeline.bubble) == (6, 3, 0)


def test_a_timeline_without_anything():
    assert (Timeline(((), ())).makespan, Timeline(((), ())).bubble) == (0, 0)


def test_a_recorded_timeline_need_not_start_at_zero():
    spans = ((Span(Action.parse("0F0"), 100, 103),), (Span(Action.parse("1F0"), 103, 104),))
    assert (Timeline(spans).makespan, Timeline(spans).length) == (4, 3)
    assert Timeline(spans).bubble == pytest.approx(1 / 3)


def test_the_shortest_is_the_first_of_the_shortest():
    slow, fast, alike = (make_schedule(n, 3, 3) for n in ("layer", "gpipe", "1f1b"))
    assert shortest(slow, fast, alike) is fast


STUCK = """
schedule mine
stages 0 1
micro-batches 2
actor 0: 0F0 0B0 0F1 0B1
actor 1: 1F0 1F1 1B0 1B1
"""


def test_a_schedule_that_waits_for_ever_says_who_waits_for_what_and_how_far_it_came():
    with pytest.raises(ScheduleError) as caught:
        simulate(load(STUCK))
    assert str(caught.value) == (
        "mine would wait for ever: actor 0 stands before 0B0 and waits for 1B0, which actor 1 "
        "does; actor 1 stands before 1F1 and waits for 0F1, which actor 0 does. It would come "
        "this far:\n0 │ F0 ·\n1 │ ·  F0"
    )


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ("0B0 0F0", "actor 0 stands before 0B0 and waits for 0F0, which comes later in its own"),
        ("0F0 0W0 0I0", "actor 0 stands before 0W0 and waits for 0I0, which comes later"),
        ("0B0", "waits for 0F0, which no actor does"),
    ],
)
def test_what_is_waited_for_in_vain(actions, why):
    order = tuple(map(Action.parse, actions.split()))
    with pytest.raises(ScheduleError, match=why):
        simulate(Schedule("mine", loop(1), (0,), (order,)))
