"""Intervals and boxes are sets of integers, and behave as sets do."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.errors import GeometryError
from mpi4dl.geometry import Box, Interval
from support.layouts import boxes_near, sizes

intervals = st.tuples(st.integers(-9, 9), st.integers(0, 9)).map(lambda t: Interval(t[0], sum(t)))


@st.composite
def two_boxes(draw: st.DrawFn) -> tuple[Box, Box]:
    size = draw(sizes())
    return draw(boxes_near(size, 2)), draw(boxes_near(size, 2))


def members(interval: Interval) -> set[int]:
    return set(range(interval.start, interval.stop))


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(i.start, i.stop) for i in box)))


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ((0, 5), (3, 8), (3, 5)),
        ((3, 8), (0, 5), (3, 5)),
        ((0, 9), (2, 4), (2, 4)),
        ((-3, 2), (0, 9), (0, 2)),
        ((0, 3), (3, 6), (3, 3)),
        ((0, 3), (7, 9), (7, 7)),
        ((7, 9), (0, 3), (7, 7)),
        ((4, 4), (0, 9), (4, 4)),
    ],
)
def test_the_common_part_of_two_intervals(a, b, common):
    assert Interval(*a).intersect(Interval(*b)) == Interval(*common)


def test_an_interval_that_ends_before_it_starts_is_refused():
    with pytest.raises(GeometryError, match=r"interval \[3, 2\) ends before it starts"):
        Interval(3, 2)


@given(intervals, intervals)
def test_intervals_are_sets_of_integers(a, b):
    assert a.size == len(members(a))
    assert a.empty == (not members(a))
    assert members(a.intersect(b)) == members(a) & members(b)
    assert a.contains(b) == (members(b) <= members(a))
    assert members(a.shift(3)) == {i + 3 for i in members(a)}


@given(intervals, intervals)
def test_a_slice_in_an_outer_interval_takes_the_same_integers(a, b):
    inner = a.intersect(b)
    assert list(range(a.start, a.stop))[inner.slice_in(a)] == sorted(members(inner))


@given(two_boxes())
def test_boxes_are_sets_of_cells(pair):
    a, b = pair
    assert a.volume == len(cells(a))
    assert a.empty == (not cells(a))
    assert cells(a.intersect(b)) == cells(a) & cells(b)
    assert a.contains(b) == (cells(b) <= cells(a))


def test_a_box_is_made_from_bounds_or_from_a_size():
    box = Box.of((2, 5), (0, 4))
    assert box.shape == (3, 4)
    assert len(box) == 2
    assert box[0] == Interval(2, 5)
    assert list(box) == [Interval(2, 5), Interval(0, 4)]
    assert Box.full((3, 4)) == Box.of((0, 3), (0, 4))
    assert box.slices_in(Box.of((1, 9), (-2, 6))) == (slice(1, 4), slice(2, 6))


def test_boxes_print_as_slices():
    assert str(Interval(-1, 4)) == "-1:4"
    assert str(Box.of((2, 5), (0, 4))) == "[2:5, 0:4]"


def test_equal_boxes_are_the_same_key():
    assert {Box.of((0, 2), (1, 3)): "plan"}[Box.of((0, 2), (1, 3))] == "plan"


def test_boxes_of_different_dimensions_do_not_mix():
    with pytest.raises(ValueError, match="shorter"):
        Box.full((3, 4)).intersect(Box.full((3,)))
