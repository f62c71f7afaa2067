"""The planner's simulator agrees with that of the schedules, and shares cores."""

import pytest

from mpi4dl.planner.simulator import Worker, play
from mpi4dl.schedule import SCHEDULES, Kind, lower, make_schedule, simulate

TIMES = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.INPUT: 1.0, Kind.WEIGHT: 1.0}


def workers_of(schedule, ranks=1):
    return [Worker(actions, {0: ranks}) for actions in schedule.actions]


@pytest.mark.parametrize("name", SCHEDULES)
def test_with_the_costs_of_the_schedules_it_is_their_timeline(name):
    schedule = make_schedule(name, 4, 4)
    expected = simulate(schedule, latency=0.25)
    found = play(workers_of(schedule), schedule.stages, lambda a: TIMES[a.kind], lambda a, b: 0.25)
    assert found == expected


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "chimera"])
def test_one_core_does_everything_one_after_the_other(name):
    schedule = make_schedule(name, 2, 4)
    work = sum(TIMES[action.kind] for _, action in schedule)
    found = play(
        workers_of(schedule), schedule.stages, lambda a: TIMES[a.kind], lambda a, b: 0.0, cores=1
    )
    assert found.makespan == pytest.approx(work)


def test_cores_are_shared_only_while_there_are_too_few():
    schedule = make_schedule("gpipe", 2, 1)
    duration, message = (lambda a: TIMES[a.kind]), (lambda a, b: 0.0)
    alone = play(workers_of(schedule), 2, duration, message)
    shared = play(workers_of(schedule), 2, duration, message, cores=1)
    assert shared.makespan == pytest.approx(alone.makespan)  # a pipeline with one micro-batch
    four = play(workers_of(schedule, ranks=4), 2, duration, message, cores=2)
    assert four.makespan == pytest.approx(2 * alone.makespan)


def test_an_action_of_several_workers_waits_for_all_of_them():
    schedule = make_schedule("gems", 2, 1, times=2)
    lists = lower(schedule).actions
    computed = [tuple(a for a in actions if a.kind.computes) for actions in lists]
    both = [Worker(actions, {0: 1}) for actions in (*computed, computed[0])]
    found = play(both, 2, lambda a: TIMES[a.kind], lambda a, b: 0.0)
    assert found.spans[0] == found.spans[2]
