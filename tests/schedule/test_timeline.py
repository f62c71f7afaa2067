"""Timelines as text."""

from __future__ import annotations

import textwrap

import pytest

from mpi4dl.schedule import Action, Span, Timeline, make_schedule, render, simulate


@pytest.mark.parametrize(
    ("schedule", "drawing"),
    [
        (
            make_schedule("1f1b", 2, 2),
            """
            0 │ F0 F1 ·  ·  B0 ── ·  B1 ──
            1 │ ·  F0 B0 ── F1 B1 ── ·  ·
            """,
        ),
        (
            make_schedule("gems", 2, 1, times=2),
            """
            0 │ 0F0  ·    ·    ·    0B0  ──── 1F1' 1B1' ──── ·    ·
            1 │ ·    1F0  1B0  ──── 0F1' ·    ·    ·    ·    0B1' ────
            """,
        ),
        (
            make_schedule("zb-v", 4, 1),
            """
            0 │ 0F0 ·   ·   3F0 3I0 3W0 ·   0I0 0W0
            1 │ ·   1F0 2F0 ·   ·   2I0 1I0 2W0 1W0
            """,
        ),
    ],
    ids=str,
)
def test_drawings(schedule, drawing):
    assert render(simulate(schedule)) == textwrap.dedent(drawing).strip()


def test_a_column_is_as_long_as_is_wanted():
    timeline = simulate(make_schedule("1f1b", 1, 1), forward=0.5, backward=0.75)
    assert render(timeline, unit=0.25) == "0 │ F0 ── B0 ── ──"
    assert render(timeline, unit=0.6) == "0 │ F0 B0"


def test_actors_are_aligned_and_may_have_nothing_to_do():
    spans = ((Span(Action.parse("0F10"), 5, 6),), *[()] * 10)
    rows = render(Timeline(spans)).splitlines()
    assert (rows[0], rows[1], rows[10]) == (" 0 │ F10", " 1 │ ·", "10 │ ·")
