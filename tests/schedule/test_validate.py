"""What is wrong with a schedule is named; what is right is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import (
    Action,
    Program,
    Schedule,
    dump,
    load,
    lower,
    make_schedule,
    rendezvous,
    validate,
)
from schedule.configurations import NAMES, of


def changed(schedule: Schedule, old: str, new: str) -> Schedule:
    text = dump(schedule)
    assert old in text
    return load(text.replace(old, new, 1))


def lists(*rows: str) -> list[tuple[Action, ...]]:
    return [tuple(map(Action.parse, row.split())) for row in rows]


# ── the work ─────────────────────────────────────────────────────────────────────────────────────

TWO = make_schedule("1f1b", 2, 2)
MIRRORED = make_schedule("gems", 2, 1, times=2)


@pytest.mark.parametrize(
    ("schedule", "old", "new", "why"),
    [
        (TWO, "1B1", "", "1f1b: actor 1 lacks 1I1"),
        (TWO, "1B1", "1B0", "1f1b: actor 1 has 1B0, and 1I0 is done twice"),
        (TWO, "1B1", "1I1", "actor 1 lacks 1W1"),
        (TWO, "1B1", "1I1 1W1 1W1", "actor 1 has 1W1, and 1W1 is done twice"),
        (TWO, "1F1", "1F1 1F2", "actor 1 has 1F2, which belongs to no micro-batch"),
        (TWO, "1F1", "2F1", "actor 1 has 2F1, which belongs to no micro-batch and stage"),
        (TWO, "1F1", "1F1'", "actor 1 has 1F1', which belongs to no"),
        (TWO, "0F1", "1F1", "actor 0 has 1F1, and the stage is on actor 1"),
        (TWO, "0F1", "0SF1", "actor 0 has 0SF1; communication is not planned but made"),
        (TWO, "1F1", "1F1 1R", "actor 1 has 1R; communication is not planned"),
        (MIRRORED, "0F0", "0F1", "actor 0 has 0F1, which belongs to no"),
        (MIRRORED, "1F1'", "0F1'", "actor 0 has 0F1', and the stage is on actor 1"),
        (TWO, "0B0", "", "actor 0 lacks 0I0"),
        (TWO, "1F0 1B0 1F1", "1F0 1F1 1B0", None),
        (TWO, "1F0 1B0 1F1", "1F0 1I0 1F1 1W0", None),
        (TWO, "0F0 0F1 0B0", "0F0 0B0 0F1", None),
        (TWO, "1F0 1B0", "1B0 1F0", "actor 1 stands before 1B0 and waits for 1F0"),
    ],
)
def test_what_is_wrong_is_named(schedule, old, new, why):
    damaged = changed(schedule, old, new)
    if why is None:
        validate(damaged)
        return
    with pytest.raises(ScheduleError, match=why):
        validate(damaged)


@given(st.sampled_from(NAMES), st.integers(1, 4), st.integers(2, 5), st.data())
def test_nothing_can_be_left_out_or_done_twice(name, actors, micro_batches, data):
    schedule = of(name, actors, micro_batches)
    actor = data.draw(st.integers(0, actors - 1))
    row = schedule.actions[actor]
    at = data.draw(st.integers(0, len(row) - 1))
    for new in (row[:at] + row[at + 1 :], (*row[: at + 1], *row[at:])):
        rows = (*schedule.actions[:actor], new, *schedule.actions[actor + 1 :])
        with pytest.raises(ScheduleError):
            validate(replace(schedule, actions=rows))


# ── the lists ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            ["0F0 0SF0 0F1 0SF1", "1RF1 1F1 1RF0 1F0"],
            "actor 0 stands before 0SF0 and waits for actor 1, which stands before 1RF1; "
            "actor 1 stands before 1RF1 and waits for actor 0, which stands before 0SF0",
        ),
        (["0F0 0SF0", "1F0 1RF0"], "actor 1 has 1F0 before it can have 0F0"),
        (["0SF0 0F0", "1RF0 1F0"], "actor 0 has 0SF0 before it can have 0F0"),
        (["0F0 0SF0", "1F0"], "actor 0 has 0SF0, and no actor has 1RF0"),
        (["0F0", "1RF0 1F0"], "actor 1 has 1RF0, and no actor has 0SF0"),
        (["0F0 0SF0 0SF0", "1RF0 1F0"], "actor 0 has 0SF0 twice"),
        (["0F0 0SF0 1RF0 1F0", ""], "actor 0 has 1RF0 twice, or with its other end"),
        (["0R 0F0"], "actor 0 has 0F0 after the reduction of its stage"),
        (
            ["0F0 0R 1R", "0F0 1R 0R"],
            "actor 0 stands before 0R and waits for actor 1, which stands before 1R",
        ),
    ],
)
def test_lists_that_do_not_fit_together(rows, why):
    with pytest.raises(ScheduleError, match=why):
        rendezvous(lists(*rows), stages=2)


def test_tiles_must_agree_on_the_order_of_their_work():
    rendezvous(lists("0F0 0F1", "0F0 0F1"), stages=1)
    with pytest.raises(ScheduleError, match="actor 0 stands before 0F0 and waits for actor 1"):
        rendezvous(lists("0F0 0F1", "0F1 0F0"), stages=1)


@given(st.sampled_from(NAMES), st.integers(2, 5), st.integers(1, 5), st.data())
def test_no_message_can_be_left_out(name, actors, micro_batches, data):
    """Nor moved across another one with the same peer: the orders at both ends would differ."""
    schedule = of(name, actors, micro_batches)
    rows = [list(row) for row in lower(schedule).actions]
    places = [
        (actor, i) for actor, row in enumerate(rows) for i, a in enumerate(row) if a.kind.receives
    ]
    actor, at = data.draw(st.sampled_from(places))
    del rows[actor][at]
    with pytest.raises(ScheduleError):
        rendezvous(rows, schedule.stages)


def test_a_program_must_be_of_the_schedule():
    other = lower(make_schedule("gpipe", 2, 2))
    with pytest.raises(ScheduleError, match="actor 1 computes 1F0 1F1 1B0 1B1; the schedule says"):
        validate(TWO, Program(TWO, other.events))
    validate(TWO, lower(TWO))


# ── the report ───────────────────────────────────────────────────────────────────────────────────


def test_the_report():
    assert str(validate(make_schedule("zb-v", 6, 5))) == (
        "zb-v: 6 stages on 3 actors, 5 micro-batches\n"
        "  actor                  0    1    2\n"
        "  live activations       6    6    6\n"
        "  received, not used     1    2    2\n"
        "  messages sent         10   20   10"
    )


def test_what_split_backwards_hold_is_held_until_the_weight_part():
    one = changed(TWO, "1F0 1B0 1F1 1B1", "1F0 1I0 1F1 1I1 1W0 1W1")
    assert validate(one).peak_live == (2, 2)
    assert validate(TWO).peak_live == (2, 1)


@pytest.mark.parametrize(
    ("name", "published"),
    [("gpipe", 8), ("1f1b", 4), ("zb-h1", 4), ("zb-v", 4), ("chimera", 4), ("gems", 1)],
)
def test_memory_in_micro_batches_on_all_stages_of_an_actor(name, published):
    assert validate(of(name, 4, 8)).peak_micro_batches == published
