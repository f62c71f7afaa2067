"""`tile[...]` is what indexing the whole tensor gives, and so is `tile[...] = value`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl.comm.threads import run_threads
from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]
BASIC = [
    np.s_[:],
    np.s_[...],
    np.s_[1],
    np.s_[:, :, 1:, 1:],
    np.s_[:, 1:2, 2:7, -8:-1],
    np.s_[..., 3],
    np.s_[..., -1, :],
    np.s_[0, -1],
    np.s_[:, :, 4, 5],
    np.s_[1, 2, 3, 4],
    np.s_[:, :, ::2, 1::3],
    np.s_[::2, ::2, 5::7, ::20],
    np.s_[..., -3:, :-3],
    np.s_[:, :, 4:4],
    np.s_[:, :, 7:3, 100:],
    np.s_[None],
    np.s_[:, None, ..., None, :],
    np.s_[:, :, 2, None, 3:],
    np.s_[..., None],
    np.s_[-2:, 1, ..., ::4],
]


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("index", BASIC, ids=str)
def test_integers_slices_none_and_ellipsis(index, grid):
    assert_exact(lambda x: x[index], rand(2, 3, 9, 11), grid=grid)


@pytest.mark.parametrize("index", BASIC, ids=str)
def test_any_boxes(index):
    assert_exact(lambda x: x[index] * 2, rand(2, 3, 9, 12), layout=NOT_A_GRID)
    assert_exact(lambda x: x[index], rand(2, 3, 9, 12), grid=(11, 1))
    assert_exact(lambda x: x[index], rand(2, 3, 9, 12), grid=(2, 2), dims=(0, 2))


def test_volumes_and_rows():
    assert_exact(lambda x: x[:, :, 1:4, ::2, 2], rand(1, 2, 5, 6, 7), grid=(2, 2, 2))
    assert_exact(lambda x: [x[:, 2:], x[1, ::2], x[..., 4]], rand(2, 9), grid=(4,))
    assert_exact(lambda x: [x[3], x[2:5], x[None, ::2]], rand(9), grid=(2,))


def test_numbers_of_other_kinds():
    assert_exact(lambda x: x[np.int64(1), :, torch.tensor(2), torch.tensor(1) :], rand(2, 3, 5, 6))


def test_unet_center_crop_joins_another_tile():
    def crop(x, y):
        top, left = (x.shape[2] - y.shape[2]) // 2, (x.shape[3] - y.shape[3]) // 2
        return torch.cat([x[:, :, top : top + y.shape[2], left : left + y.shape[3]], y], 1)

    for grid in GRIDS_2D:
        assert_exact(crop, rand(1, 2, 13, 15), rand(1, 3, 7, 8, seed=1), grid=grid)


def test_shifted_differences_as_in_total_variation():
    def variation(x):
        down, right = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
        return down.abs().mean() + right.pow(2).sum()

    assert_exact(variation, rand(2, 3, 7, 9), grid=(2, 2))
    assert_exact(variation, rand(2, 3, 7, 9), grid=(4, 3))


def test_space_to_depth_by_strides():
    def focus(x):
        parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return torch.cat(parts, 1)

    for grid in [(2, 2), (3, 1), (5, 2)]:
        assert_exact(focus, rand(1, 2, 10, 6), grid=grid)


ADVANCED = [
    (np.s_[:, [2, 0, 0]], {}),
    (np.s_[[1, 0]], {}),
    ([1, -1, 0], {}),
    (np.s_[:, torch.tensor([[0, 2], [1, 1]])], {}),
    (np.s_[[0, 1], [2, 1], 1:5], {}),
    (np.s_[:, torch.tensor([True, False, True]), ::2], {}),
    (np.s_[torch.tensor([[True, False, True], [False, True, True]])], {}),
    (np.s_[..., [3, 1]], {"grid": (3,), "dims": (-2,)}),
    (np.s_[[0, 1, 1], :, :, [3, 1, 0]], {"grid": (3,), "dims": (-2,)}),
    (np.s_[:, [0, 2], :, None, [3, 1]], {"grid": (3,), "dims": (-2,)}),
    (np.s_[1, [0, 2], 2:], {}),
    (np.s_[[0, 1], 2, ..., 3], {}),
    (np.s_[1, [0, 2], 4, 3], {}),
    (np.s_[:, [0, 2], 4], {"grid": (3, 1)}),
    (np.s_[:, []], {}),
    (np.s_[:, np.array([1, 0])], {}),
    (np.s_[None, :, [0]], {}),
]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize(("index", "options"), ADVANCED, ids=str)
def test_index_tensors_lists_and_masks_of_uncut_dimensions(index, options):
    assert_exact(lambda x: x[index], rand(2, 3, 7, 6), **options)


ROWS = [np.s_[..., 3], np.s_[..., -1, :], np.s_[:, :, 2, None, 3:]]
VIEWED = [i for i, options in ADVANCED if not options and str(i) != "(1, [0, 2], 4, 3)"]
WHOLE = [i for i in BASIC if i not in ROWS and i not in (np.s_[:, :, 4, 5], np.s_[1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("index", "grid"),
    [(i, g) for i in WHOLE for g in [(1, 2), (3, 1), (2, 2), (9, 2)]]
    + [(i, g) for i in ROWS for g in [(2, 2), (9, 2)]],
    ids=str,
)
def test_assignment(index, grid):
    def assign(x, whole, row):
        x, y, z = x * 1, x * 1, x * 1
        x[index] = 3
        y[index] = whole
        y[index] = y[index] * 2
        y[index] += 1
        z[index] = row
        z[index] = z.flip(-1, -2)[index]
        return x, y, z

    part = rand(2, 3, 9, 11)[index].shape
    operands = rand(2, 3, 9, 11), rand(*part, seed=1), rand(*part[-1:], seed=2)
    assert_exact(assign, *operands, grid=grid, plain=(1, 2))


def test_assignment_of_other_dtypes_and_of_leading_ones():
    def assign(x):
        x = x * 1
        x[:, :, 1, 1:4] = torch.tensor([1, 2, 3])
        x[:, 0] = np.float64(0.5)
        x[1] = torch.ones(1, 1, 5, 6, dtype=torch.float32)
        x[0] = x[1:2]
        return x

    assert_exact(assign, rand(2, 3, 5, 6), grid=(2, 2))


def test_assignment_moves_tiles_of_other_boxes_and_carries_their_gradients():
    def assign(x, y):
        out = x * 1
        out[:, :, 2:5, 1:7] = y
        out[:, 1, :2] = F.pad((y * y)[:, 0, 1:], (1, 2))
        return out

    for grid in [(2, 2), (1, 3), (4, 1), (7, 2)]:
        assert_exact(assign, rand(2, 3, 7, 9), rand(2, 3, 3, 6, seed=1), grid=grid)


def test_masks_of_the_whole_image_fill():
    def fill(x, weights):
        x = x * 1
        x[x > 1] = 0
        x[weights > 0.5] = torch.tensor(2.0, dtype=x.dtype)
        return x

    assert_exact(fill, rand(2, 3, 7, 6), rand(2, 3, 7, 6, seed=1), grid=(2, 2))
    assert_exact(fill, rand(2, 3, 7, 6), rand(2, 3, 7, 6, seed=1), grid=(2, 2), plain=(1,))


@pytest.mark.parametrize("index", VIEWED, ids=str)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_assignment_through_index_tensors(index):
    unique = {"[2, 0, 0]": [2, 0, 1]}  # the same place twice would be a race in one process too

    def assign(x, row):
        x, y = x * 1, x * 1
        where = tuple(unique.get(str(i), i) for i in index) if isinstance(index, tuple) else index
        x[where] = -1.0
        y[where] = row
        y[where] = y[where] * 2
        return x, y

    row = rand(*rand(2, 3, 7, 6)[index].shape[-1:], seed=1)
    assert_exact(assign, rand(2, 3, 7, 6), row, plain=(1,))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x[..., [1, 2]], "dimension -1 is split"),
        (
            lambda x: x[:, :, torch.tensor([True, False, True, False, True])],
            "dimension -2 is split",
        ),
        (lambda x: x[x > 0], "the index is a tile"),
        (lambda x: rand(2)[x.long()], "the index is a tile"),
        (lambda x: x[True], "adds a dimension"),
        (lambda x: x.__setitem__((..., [1, 2]), 0), "dimension -1 is split"),
        (lambda x: x.__setitem__((0, 0, 1, 2), 0), "a copy on every rank"),
        (lambda x: x.__setitem__(slice(None), x[:, :, :1]), "broadcast"),
        (lambda x: rand(2, 3, 5, 6).__setitem__(slice(None), x), "plain tensor"),
    ],
)
def test_what_is_refused(fn, message):
    assert_refused(fn, rand(2, 3, 5, 6), match=message)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x[:, :, 5], "out of range|out of bounds"),
        (lambda x: x[:, 3], "out of range|out of bounds"),
        (lambda x: x[:, [3]], "out of bounds"),
        (lambda x: x[:, [-4]], "out of bounds"),
        (lambda x: x[0, 0, 0, 0, 0], "too many indices"),
        (lambda x: x[:, :, ::-1], "step must be greater than zero"),
        (lambda x: x[:, torch.tensor([True, False])], "does not match the shape"),
        (lambda x: x.__setitem__((slice(None), slice(1, 3)), torch.ones(5)), "expand"),
        (lambda x: x.__setitem__((0, 0), [1.0] * 6), "can't assign a list"),
    ],
)
def test_the_errors_of_one_process(fn, message):
    with pytest.raises(
        (IndexError, ValueError, RuntimeError, TypeError), match=message
    ) as one_process:
        fn(rand(1, 3, 5, 6))
    assert_refused(fn, rand(1, 3, 5, 6), grid=(7, 1), error=one_process.type, match=message)


def test_slicing_sends_nothing():
    def program(comm):
        x = mpi4dl.shard(rand(2, 3, 9, 11), grid=(2, 3))
        x[:, 1:, 3:8, ::2][..., 1, :]
        x[..., :4, :] = 0
        F.relu(x[0, :, 2:])
        comm.all_reduce(torch.zeros(1))
        return comm.messages_sent

    assert run_threads(6, program) == [0] * 6
