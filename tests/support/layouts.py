"""Hypothesis strategies: layouts of every kind, boxes that reach outside, monotone maps."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from mpi4dl.geometry import Box, Interval, Layout

NOT_A_GRID = Layout(
    (9, 12), (Box.of((0, 5), (0, 12)), Box.of((5, 9), (0, 4)), Box.of((5, 9), (4, 12)))
)
"""Three ranks: one above two that lie side by side."""


@st.composite
def sizes(draw: st.DrawFn, axes: int | None = None, smallest: int = 0) -> tuple[int, ...]:
    """One to three axes; small, so that tiles are often narrower than a halo, and empty."""
    axes = axes if axes is not None else draw(st.integers(1, 3))
    largest = {1: 40, 2: 12, 3: 7}[axes]
    return tuple(draw(st.lists(st.integers(smallest, largest), min_size=axes, max_size=axes)))


@st.composite
def cut_layouts(draw: st.DrawFn, size: tuple[int, ...], most: int = 64) -> Layout:
    """A grid with cuts anywhere, of at most `most` ranks and eight along an axis."""
    cuts: list[list[int]] = []
    for n in size:
        largest = min(8, most // prod(len(c) + 1 for c in cuts))
        parts = draw(st.one_of(st.integers(1, largest), st.just(largest)))
        positions = st.lists(st.integers(0, n), min_size=parts - 1, max_size=parts - 1)
        cuts.append(sorted(draw(positions)))
    return Layout.from_cuts(size, cuts)


@st.composite
def split_layouts(draw: st.DrawFn, size: tuple[int, ...], most: int = 9) -> Layout:
    """Boxes that are no grid: the whole, cut in two again and again."""
    boxes = [Box.full(size)]
    for _ in range(draw(st.integers(0, most - 1))):
        which = draw(st.integers(0, len(boxes) - 1))
        axis = draw(st.integers(0, len(size) - 1))
        intervals = boxes[which].intervals
        here = intervals[axis]
        at = draw(st.integers(here.start, here.stop))
        halves = (Interval(here.start, at), Interval(at, here.stop))
        boxes[which : which + 1] = [
            Box((*intervals[:axis], half, *intervals[axis + 1 :])) for half in halves
        ]
    return Layout(size, tuple(draw(st.permutations(boxes))))


@st.composite
def layouts(draw: st.DrawFn, axes: int | None = None, smallest: int = 0) -> Layout:
    size = draw(sizes(axes, smallest))
    return draw(st.one_of(cut_layouts(size), split_layouts(size)))


@st.composite
def boxes_near(draw: st.DrawFn, size: tuple[int, ...], margin: int = 5) -> Box:
    """Any box inside or outside an image of this size, empty ones included."""
    bounds = []
    for n in size:
        a, b = draw(st.tuples(*[st.integers(-margin, n + margin)] * 2))
        bounds.append((min(a, b), max(a, b)))
    return Box.of(*bounds)


@st.composite
def monotone_maps(draw: st.DrawFn, n: int, out: int) -> tuple[int, ...]:
    """Where each of the cuts 0 … n goes: values that do not fall, also outside 0 … out."""
    values = st.lists(st.integers(-3, out + 3), min_size=n + 1, max_size=n + 1)
    return tuple(sorted(draw(values)))
