"""Transfers carry every wanted cell exactly once, and backward is the true adjoint of forward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.errors import GeometryError
from mpi4dl.geometry import Box, Interval, Layout, Move, SlidingWindow, Transfer
from support.layouts import boxes_near, layouts

Arrays = list[np.ndarray]


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """To boxes anywhere: overlapping, outside the image, empty."""
    layout = draw(layouts())
    return Transfer(layout, tuple(draw(boxes_near(layout.size)) for _ in layout.boxes))


@st.composite
def relayouts(draw: st.DrawFn) -> Transfer:
    """From one layout to another of the same size; ranks without a box hold nothing."""
    before = draw(layouts())
    ranks = draw(st.integers(1, before.ranks))
    after = Layout.vertical(before.size, ranks).boxes
    nothing = Box.of(*[(0, 0)] * len(before.size))
    return Transfer(before, (*after, *[nothing] * (before.ranks - ranks)))


def with_halo(layout: Layout, before: int, after: int) -> Transfer:
    """Every rank wants its own box and a border around it, also if its own box is empty."""
    targets = (
        Box(tuple(Interval(i.start - before, i.stop + after) for i in box)) for box in layout.boxes
    )
    return Transfer(layout, tuple(targets))


def integers(shapes: list[tuple[int, ...]], seed: int) -> Arrays:
    """Small whole numbers, so that sums are exact and equality means equality."""
    draw = np.random.default_rng(seed)
    return [draw.integers(-9, 10, size=shape) for shape in shapes]


def forward(transfer: Transfer, held: Arrays) -> Arrays:
    """All ranks at once: what each wants, from what each holds; 0 outside the image."""
    layout, wanted = transfer.layout, [np.zeros(box.shape, int) for box in transfer.targets]
    for move in transfer.moves():
        taken = held[move.source][move.box.slices_in(layout.boxes[move.source])]
        wanted[move.target][move.box.slices_in(transfer.targets[move.target])] = taken
    return wanted


def backward(transfer: Transfer, wanted: Arrays) -> Arrays:
    """The same moves from target to source; what arrives for the same cell is summed."""
    layout, held = transfer.layout, [np.zeros(box.shape, int) for box in transfer.layout.boxes]
    for move in transfer.moves():
        given_back = wanted[move.target][move.box.slices_in(transfer.targets[move.target])]
        held[move.source][move.box.slices_in(layout.boxes[move.source])] += given_back
    return held


def dot(a: Arrays, b: Arrays) -> int:
    return sum(int((x * y).sum()) for x, y in zip(a, b, strict=True))


def assert_covers(transfer: Transfer) -> None:
    """Every wanted cell inside the image arrives exactly once, and nothing else does."""
    whole = Box.full(transfer.layout.size)
    for rank, wanted in enumerate(transfer.targets):
        arrived = np.zeros(wanted.shape, int)
        for move in transfer.incoming(rank):
            assert move.target == rank
            assert transfer.layout.boxes[move.source].contains(move.box)
            assert wanted.contains(move.box)
            assert not move.box.empty
            arrived[move.box.slices_in(wanted)] += 1
        inside = np.zeros(wanted.shape, int)
        inside[wanted.intersect(whole).slices_in(wanted)] = 1
        assert (arrived == inside).all()


def assert_right(transfer: Transfer) -> None:
    """Coverage, agreement of both ends, values, and the adjoint identity <T x, y> == <x, T* y>."""
    assert_covers(transfer)
    layout = transfer.layout
    ranks = range(layout.ranks)
    assert {m for r in ranks for m in transfer.outgoing(r)} == set(transfer.moves())
    # the image, padded so far that every wanted box lies inside
    far = 1 + max(max(-i.start, i.stop) for box in transfer.targets for i in box) + sum(layout.size)
    image = integers([layout.size], seed=1)[0]
    padded = np.pad(image, far)
    held = [image[box.slices_in(Box.full(layout.size))] for box in layout.boxes]
    wanted = forward(transfer, held)
    outer = Box.of(*[(-far, n + far) for n in layout.size])
    for got, box in zip(wanted, transfer.targets, strict=True):
        assert (got == padded[box.slices_in(outer)]).all()
    y = integers([box.shape for box in transfer.targets], seed=2)
    assert dot(wanted, y) == dot(held, backward(transfer, y))


@given(transfers())
def test_to_any_boxes(transfer):
    assert_right(transfer)


@given(relayouts())
def test_from_one_layout_to_another_moves_every_cell_once(transfer):
    assert_right(transfer)
    moved = sum(move.box.volume for move in transfer.moves())
    assert moved == Box.full(transfer.layout.size).volume
    held = integers([box.shape for box in transfer.layout.boxes], seed=3)
    there_and_back = backward(transfer, forward(transfer, held))
    assert all((a == b).all() for a, b in zip(there_and_back, held, strict=True))


@given(layouts(), st.integers(0, 9), st.integers(0, 9))
def test_halos_also_wider_than_a_tile(layout, before, after):
    assert_right(with_halo(layout, before, after))


@pytest.mark.parametrize("halo", [(1, 1), (0, 3), (5, 2)])
@pytest.mark.parametrize(
    ("size", "grid"),
    [
        *[((33, 41), (8, 8)), ((8, 8), (8, 8)), ((5, 3), (8, 8)), ((1, 1), (8, 8))],
        *[((64,), (8,)), ((3,), (8,)), ((17, 9), (1, 8)), ((9, 17), (8, 1))],
        *[((5, 6, 7), (2, 2, 2)), ((4, 4, 4), (3, 1, 4)), ((2, 2, 2), (3, 3, 3))],
    ],
)
def test_halos_on_grids(size, grid, halo):
    assert_right(with_halo(Layout.grid(size, grid), *halo))


@given(st.data())
def test_the_halo_of_a_strided_window_is_what_its_outputs_read(data):
    layout = data.draw(layouts(smallest=4))
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    after, windows = layout, []
    for axis, n in enumerate(layout.size):
        windows.append(SlidingWindow(n, (n + 2 - kernel) // stride + 1, kernel, stride, 1))
        after = after.remap(axis, windows[-1].out_size, windows[-1].cut)
    targets = tuple(
        Box(tuple(w.reads(i) for w, i in zip(windows, box, strict=True))) for box in after.boxes
    )
    assert_right(Transfer(layout, targets))


def test_the_moves_of_a_halo_exchange():
    transfer = with_halo(Layout.from_cuts((10,), [(4, 5)]), 2, 1)
    assert [(m.source, m.target, str(m.box)) for m in transfer.moves()] == [
        *[(0, 0, "[0:4]"), (1, 0, "[4:5]")],
        *[(0, 1, "[2:4]"), (1, 1, "[4:5]"), (2, 1, "[5:6]")],
        *[(0, 2, "[3:4]"), (1, 2, "[4:5]"), (2, 2, "[5:10]")],
    ]
    assert list(transfer.outgoing(2)) == [
        Move(2, 1, Box.of((5, 6))),
        Move(2, 2, Box.of((5, 10))),
    ]


def test_corners_come_from_the_diagonal_neighbour():
    transfer = with_halo(Layout.grid((6, 6), (2, 2)), 1, 1)
    corner = Move(3, 0, Box.of((3, 4), (3, 4)))
    assert corner in set(transfer.incoming(0))


def test_four_tiles_become_two_and_one():
    layout = Layout.grid((6, 6), (2, 2))
    nothing = Box.of((0, 0), (0, 0))
    two = Transfer(layout, (*Layout.vertical((6, 6), 2).boxes, nothing, nothing))
    pairs = [(0, 0), (2, 0), (1, 1), (3, 1)]
    assert [(m.source, m.target) for m in two.moves()] == pairs
    gathered = Transfer(layout, (Box.full((6, 6)), nothing, nothing, nothing))
    assert [(m.source, m.target) for m in gathered.moves()] == [(0, 0), (1, 0), (2, 0), (3, 0)]


@given(st.one_of(transfers(), relayouts()))
def test_a_transfer_is_local_if_nothing_goes_from_one_rank_to_another(transfer):
    alone = all(move.source == move.target for move in transfer.moves())
    assert transfer.is_local == alone


def test_an_image_border_alone_is_local():
    layout = Layout.vertical((4, 6), 2)
    assert Transfer(layout, layout.boxes).is_local
    assert Transfer(layout, (Box.of((-1, 5), (-2, 3)), Box.of((-1, 5), (3, 8)))).is_local
    assert not Transfer(layout, (Box.of((0, 4), (0, 4)), layout.boxes[1])).is_local


def test_every_rank_must_say_what_it_wants():
    with pytest.raises(GeometryError, match="1 wanted boxes for the 2 ranks"):
        Transfer(Layout.vertical((4, 6), 2), (Box.full((4, 6)),))
