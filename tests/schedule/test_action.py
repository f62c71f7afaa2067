"""Actions print and parse; what they need and what they complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import Action, Kind
from mpi4dl.schedule.action import activations, completes, message, needs

counts = st.integers(0, 2000)
actions = st.one_of(
    st.builds(
        Action,
        st.sampled_from([kind for kind in Kind if kind is not Kind.REDUCE]),
        counts,
        counts,
        st.integers(0, 1),
    ),
    st.builds(Action, st.just(Kind.REDUCE), counts),
)


def parse(text: str) -> tuple[Action, ...]:
    return tuple(map(Action.parse, text.split()))


def written(actions: tuple[Action, ...]) -> str:
    return " ".join(map(str, actions))


@given(actions)
def test_what_is_printed_parses_to_the_same(action):
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("1F0", Action(Kind.FORWARD, 1, 0)),
        ("12B34'", Action(Kind.BACKWARD, 12, 34, 1)),
        ("0I1", Action(Kind.INPUT, 0, 1)),
        ("0W1'", Action(Kind.WEIGHT, 0, 1, 1)),
        ("3SF2", Action(Kind.SEND_FORWARD, 3, 2)),
        ("4RB2'", Action(Kind.RECEIVE_BACKWARD, 4, 2, 1)),
        ("7R", Action(Kind.REDUCE, 7)),
    ],
)
def test_the_text_of_actions(text, action):
    assert Action.parse(text) == action
    assert str(action) == text


@pytest.mark.parametrize(
    "text", ["", "F0", "1X0", "1F", "1F0''", "1F0 ", "-1F0", "1R0", "1R'", "1f0"]
)
def test_what_is_no_action_says_what_one_looks_like(text):
    with pytest.raises(ScheduleError, match="such as 1F0"):
        Action.parse(text)


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        ("0F5", ""),
        ("1F5'", "0F5'"),
        ("2B5", "2F5"),
        ("1B5'", "1F5' 2I5'"),
        ("2I5", "2F5"),
        ("0I5", "0F5 1I5"),
        ("0W5", "0I5"),
        ("2W5", "2I5"),
    ],
)
def test_what_actions_of_three_stages_need(action, wanted):
    assert written(needs(Action.parse(action), 3)) == wanted


@pytest.mark.parametrize(
    ("action", "parts", "sent", "kept"),
    [
        ("0F5", "0F5", "0SF5", 1),
        ("2F5", "2F5", "None", 1),
        ("2B5", "2I5 2W5", "2SB5", -1),
        ("0B5'", "0I5' 0W5'", "None", -1),
        ("1I5'", "1I5'", "1SB5'", 0),
        ("1W5", "1W5", "None", -1),
    ],
)
def test_what_actions_of_three_stages_leave_behind(action, parts, sent, kept):
    assert written(completes(Action.parse(action))) == parts
    assert str(message(Action.parse(action), 3)) == sent
    assert activations(Action.parse(action)) == kept


@pytest.mark.parametrize(("send", "receive"), [("0SF5", "1RF5"), ("2SB5'", "1RB5'")])
def test_the_two_ends_of_a_message_name_each_other(send, receive):
    assert str(Action.parse(send).counterpart) == receive
    assert str(Action.parse(receive).counterpart) == send


def test_kinds():
    assert [k.value for k in Kind if k.computes] == ["F", "B", "I", "W"]
    assert [k.value for k in Kind if k.sends] == ["SF", "SB"]
    assert [k.value for k in Kind if k.receives] == ["RF", "RB"]
