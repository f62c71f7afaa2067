"""The boxes of a layout tile its size, however it was made and whatever an operator does to it."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from mpi4dl.errors import GeometryError
from mpi4dl.geometry import Box, Interval, Layout, square_grid
from support.layouts import cut_layouts, layouts, monotone_maps, sizes, split_layouts


def owners(layout: Layout) -> Counter[tuple[int, ...]]:
    """How many ranks hold each cell."""
    return Counter(
        cell
        for box in layout.boxes
        for cell in product(*(range(i.start, i.stop) for i in box.intervals))
    )


def assert_tiles(layout: Layout) -> None:
    layout.check_disjoint()
    cells = set(product(*map(range, layout.size)))
    assert owners(layout) == dict.fromkeys(cells, 1)


# ── constructors ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("parts", "grid"),
    [
        *[(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (1, 5)), (6, (2, 3))],
        *[(7, (1, 7)), (8, (2, 4)), (9, (3, 3)), (12, (3, 4)), (16, (4, 4)), (18, (3, 6))],
        *[(32, (4, 8)), (36, (6, 6)), (64, (8, 8)), (1024, (32, 32))],
    ],
)
def test_square_is_the_most_square_grid_with_the_larger_factor_last(parts, grid):
    assert square_grid(parts) == grid
    assert square_grid(parts, 3) == (1, *grid)
    assert square_grid(parts, 1) == (parts,)
    assert Layout.square((50, 60), parts) == Layout.grid((50, 60), grid)


@given(st.integers(1, 400))
def test_no_other_grid_is_more_square(parts):
    rows, columns = square_grid(parts)
    assert rows * columns == parts
    assert rows <= columns
    assert not any(parts % r == 0 for r in range(rows + 1, columns) if r * r <= parts)


def test_vertical_parts_stand_side_by_side():
    boxes = (Box.of((0, 4), (0, 3)), Box.of((0, 4), (3, 5)), Box.of((0, 4), (5, 7)))
    assert Layout.vertical((4, 7), 3).boxes == boxes
    assert Layout.vertical((4, 7), 3).cut_axes == (1,)
    assert Layout.vertical((9,), 2).boxes == (Box.of((0, 5)), Box.of((5, 9)))
    assert Layout.vertical((5, 4, 7), 3).cut_axes == (2,)


def test_horizontal_parts_lie_one_above_the_other():
    boxes = (Box.of((0, 3), (0, 4)), Box.of((3, 5), (0, 4)), Box.of((5, 7), (0, 4)))
    assert Layout.horizontal((7, 4), 3).boxes == boxes
    assert Layout.horizontal((7, 4), 3).cut_axes == (0,)
    assert Layout.horizontal((2, 7, 4), 3).cut_axes == (1,)


def test_ranks_count_in_row_major_order():
    a, b, c, d = Layout.square((4, 6), 4).boxes
    assert (a, b) == (Box.of((0, 2), (0, 3)), Box.of((0, 2), (3, 6)))
    assert (c, d) == (Box.of((2, 4), (0, 3)), Box.of((2, 4), (3, 6)))


@pytest.mark.parametrize(
    ("method", "parts", "grid"),
    [
        *[("square", 6, (2, 3)), ("vertical", 3, (1, 3)), ("horizontal", 3, (3, 1))],
        *[("2x3", 6, (2, 3)), ("3x2", 6, (3, 2)), ("1x1", 1, (1, 1)), ("10x2", 20, (10, 2))],
        ("4", 4, (1, 4)),
    ],
)
def test_slice_methods_by_name(method, parts, grid):
    assert Layout.sliced((40, 50), parts, method) == Layout.grid((40, 50), grid)


def test_a_grid_by_name_for_volumes():
    assert Layout.sliced((8, 9, 10), 12, "2x2x3") == Layout.grid((8, 9, 10), (2, 2, 3))
    assert Layout.sliced((8, 9, 10), 6, "2x3") == Layout.grid((8, 9, 10), (1, 2, 3))


def test_explicit_cuts():
    layout = Layout.from_cuts((97, 75), [(40,), (30, 50)])
    assert layout.ranks == 6
    assert layout.boxes[0] == Box.of((0, 40), (0, 30))
    assert layout.boxes[5] == Box.of((40, 97), (50, 75))


@given(sizes(), st.lists(st.integers(1, 8), min_size=3, max_size=3))
def test_the_pieces_of_a_grid_differ_by_one_at_most_and_the_first_are_larger(size, parts):
    layout = Layout.grid(size, parts[: len(size)])
    assert_tiles(layout)
    for axis in range(len(size)):
        pieces = sorted({box[axis] for box in layout.boxes})
        lengths = [p.size for p in pieces]
        assert max(lengths) - min(lengths) <= 1
        assert [n for n in lengths if n] == sorted((n for n in lengths if n), reverse=True)


@pytest.mark.parametrize("parts", [(8, 8), (1, 8), (8, 1)])
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 8), (64, 33), (0, 9)])
def test_more_ranks_than_rows_leaves_empty_tiles(size, parts):
    layout = Layout.grid(size, parts)
    assert layout.ranks == parts[0] * parts[1]
    assert_tiles(layout)


# ── clear errors ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout((4,), ()), "at least one box"),
        (lambda: Layout((-4,), (Box.of((0, 0)),)), r"cannot have the size \(-4,\)"),
        (lambda: Layout((4,), (Box.of((0, 5)),)), r"box \[0:5\] of rank 0 lies outside"),
        (lambda: Layout((4,), (Box.of((0, 2), (0, 2)),)), r"rank 0 lies outside the size \(4,\)"),
        (lambda: Layout((4,), (Box.of((0, 3)),)), "hold 3 cells and the size .* has 4"),
        (lambda: Layout((4,), (Box.of((0, 3)), Box.of((2, 4)))), "exactly one rank"),
        (lambda: Layout.grid((4, 4), (2,)), r"cannot cut the size \(4, 4\) by the grid \(2,\)"),
        (lambda: Layout.grid((4, 4), (2, 0)), r"by the grid \(2, 0\)"),
        (lambda: Layout.from_cuts((4, 4), [(2,)]), "1 lists of cuts for the 2 axes"),
        (lambda: Layout.from_cuts((4,), [(3, 2)]), r"\(3, 2\) do not rise from 0 to 4"),
        (lambda: Layout.from_cuts((4,), [(5,)]), r"\(5,\) do not rise from 0 to 4"),
        (lambda: Layout.from_cuts((4,), [(-1,)]), "do not rise"),
        (lambda: Layout.square((4, 4), 0), "cannot cut an image into 0 parts"),
        (lambda: Layout.horizontal((4,), 2), "need a height and a width; use vertical"),
        (lambda: Layout.sliced((4, 4), 4, "diagonal"), "'diagonal': use square, vertical, horiz"),
        (lambda: Layout.sliced((4, 4), 4, "2x"), "unknown slice method '2x'"),
        (lambda: Layout.sliced((4, 4), 4, "2x3"), "2x3 has 6 parts, and 4 were asked for"),
        (lambda: Layout.sliced((4, 4), 8, "2x2x2"), r"size \(4, 4\) by the grid \(2, 2, 2\)"),
    ],
)
def test_impossible_layouts_are_refused_with_the_numbers(make, message):
    with pytest.raises(GeometryError, match=message):
        make()


def test_overlaps_that_hide_behind_a_gap_are_found():
    box = Box.of
    hidden = Layout((4, 2), (box((0, 2), (0, 2)), box((1, 3), (0, 2)), box((0, 0), (0, 0))))
    with pytest.raises(GeometryError, match="ranks 0 and 1 overlap"):
        hidden.check_disjoint()


# ── what operators do to layouts ─────────────────────────────────────────────────────────────────


@given(st.data())
def test_layouts_of_every_kind_tile(data):
    size = data.draw(sizes())
    assert_tiles(data.draw(cut_layouts(size)))
    assert_tiles(data.draw(split_layouts(size)))


def test_grids_of_eight_by_eight_are_among_them():
    find(layouts(axes=2), lambda layout: layout.ranks == 64, settings=settings(derandomize=True))


@given(st.data())
def test_remap_tiles_again_for_any_monotone_map(data):
    layout = data.draw(layouts(smallest=1))
    axis = data.draw(st.integers(0, len(layout.size) - 1))
    size = data.draw(st.integers(0, 14))
    table = data.draw(monotone_maps(layout.size[axis], size))
    after = layout.remap(axis, size, table.__getitem__)
    assert after.ranks == layout.ranks
    assert after.size == (*layout.size[:axis], size, *layout.size[axis + 1 :])
    assert_tiles(after)
    for old, new in zip(layout.boxes, after.boxes, strict=True):
        assert new.empty or not old.empty, "a rank that held nothing got something"


def test_remap_moves_the_cuts_and_keeps_the_ends():
    layout = Layout.from_cuts((10, 4), [(3, 7), (2,)])
    halved = layout.remap(0, 5, lambda c: (c + 1) // 2)
    assert halved == Layout.from_cuts((5, 4), [(2, 4), (2,)])
    assert layout.remap(0, 12, lambda c: c + 5) == Layout.from_cuts((12, 4), [(8, 12), (2,)])
    assert layout.remap(0, 6, lambda c: c - 9) == Layout.from_cuts((6, 4), [(0, 0), (2,)])


@given(layouts(), st.integers(0, 5), st.data())
def test_select_undoes_insert(layout, extra, data):
    axis = data.draw(st.integers(0, len(layout.size)))
    wider = layout.insert(axis, extra)
    assert wider.size[axis] == extra
    assert axis not in wider.cut_axes
    assert_tiles(wider)
    assert wider.select([a for a in range(len(wider.size)) if a != axis]) == layout


def test_an_axis_that_is_cut_cannot_be_dropped():
    layout = Layout.grid((6, 8), (2, 2))
    with pytest.raises(GeometryError, match="every cell must belong to exactly one rank"):
        layout.select([0])
    assert Layout.vertical((6, 8), 2).select([1]) == Layout.vertical((8,), 2)


@given(layouts())
def test_an_axis_is_cut_if_some_rank_holds_less_than_all_of_it(layout):
    for axis, n in enumerate(layout.size):
        everywhere = all(box[axis] == Interval(0, n) for box in layout.boxes)
        assert (axis in layout.cut_axes) != everywhere


@given(layouts())
def test_equal_layouts_are_equal_keys_and_others_are_not(layout):
    twin = Layout(layout.size, tuple(layout.boxes))
    assert twin == layout
    assert hash(twin) == hash(layout)
    assert layout != Layout((*layout.size, 1), tuple(Box((*b, Interval(0, 1))) for b in twin.boxes))
    assert layout != layout.size


def test_grids_are_made_once():
    assert Layout.grid((9, 8), (2, 2)) is Layout.grid([9, 8], [2, 2])


def test_layouts_print_what_each_rank_holds():
    assert str(Layout.vertical((4, 6), 2)) == (
        "Layout 4×6 over 2 ranks (0: [0:4, 0:3], 1: [0:4, 3:6])"
    )
    assert "… 56 more" in str(Layout.square((80, 80), 64))
