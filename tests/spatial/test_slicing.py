"""Parts of tiles along a dimension, taken by narrow, select, split and their kin."""

from __future__ import annotations

import pytest
import torch

import mpi4dl
from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID
from support.ranks import run_ranks

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -2, -4])
def test_narrow_every_dimension(dim, grid):
    x = rand(3, 4, 9, 11)
    n = x.shape[dim]
    assert_exact(lambda x: x.narrow(dim, 1, n - 2), x, grid=grid)
    assert_exact(lambda x: torch.narrow(x, dim, start=-2, length=1) * 2, x, grid=grid)
    assert_exact(lambda x: x.narrow(dim, n, 0), x, grid=grid)
    assert_exact(lambda x: torch.narrow_copy(x, dim, 0, n), x, grid=grid)


def test_what_follows_a_slice_sees_the_smaller_image():
    conv = torch.nn.Conv2d(2, 3, 3, padding=1)
    net = torch.nn.Sequential(conv, torch.nn.Conv2d(3, 3, 5, padding=2, padding_mode="reflect"))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x.narrow(2, 2, 4).narrow(3, 4, 7)).narrow(2, 1, 2)

    for layout in (NOT_A_GRID, mpi4dl.Layout.grid((9, 12), (5, 2))):
        assert_exact(Net(), rand(1, 2, 9, 12), layout=layout)


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -3])
def test_select_every_dimension(dim, grid):
    x = rand(3, 4, 9, 11)
    assert_exact(lambda x: x.select(dim, 1), x, grid=grid)
    assert_exact(lambda x: torch.select(x, dim=dim, index=-1), x, grid=grid)


def test_select_in_layouts_of_all_kinds():
    for index in (0, 4, 5, 8):
        assert_exact(
            lambda x, i=index: x.select(2, i) * x.select(2, 1), rand(1, 2, 9, 12), layout=NOT_A_GRID
        )
        assert_exact(
            lambda x, i=index: x.select(3, i).select(2, 1), rand(1, 2, 9, 12), layout=NOT_A_GRID
        )
    assert_exact(lambda x: x.select(1, 2).select(1, 1), rand(4, 5, 6), grid=(3, 2), dims=(0, 1))
    assert_exact(lambda x: x.select(2, 1), rand(2, 3, 2, 2), grid=(3, 3))
    assert_exact(lambda x: x.select(0, 1).select(-2, 2), rand(3, 2, 5, 6), grid=(2, 2), dims=(0, 2))
    assert_exact(lambda x: x.select(3, 1).select(2, 3), rand(1, 2, 5, 6, 7), grid=(2, 2, 2))


def test_one_row_of_the_only_cut_dimension_is_replicated():
    def program(comm):
        x = mpi4dl.shard(rand(2, 3, 5), grid=(2,), dims=(1,))
        row = x.select(1, 2)
        assert type(row) is torch.Tensor
        assert torch.equal(row, rand(2, 3, 5).select(1, 2))
        return True

    assert all(run_ranks(2, program))


@pytest.mark.parametrize("grid", [(3, 1), (2, 2)])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_chunk_and_split(dim, grid):
    x = rand(4, 6, 9, 11)

    def parts(x):
        n = x.shape[dim]
        return [
            x.chunk(3, dim),
            torch.chunk(x, chunks=2, dim=dim),
            x.split(2, dim),
            torch.split(x, split_size_or_sections=[1, n - 3, 2], dim=dim),
            x.split(split_size=3, dim=dim),
            x.split_with_sizes([n - 1, 1], dim),
            torch.unsafe_split(x, 2, dim),
            x.unsafe_chunk(2, dim=dim),
            x.tensor_split(3, dim),
            torch.tensor_split(x, (1, 3), dim=dim),
            x.tensor_split(indices=(3, 1), dim=dim),
            x.tensor_split(torch.tensor([2]), dim),
        ]

    assert_exact(parts, x, grid=grid)


def test_split_by_named_dimensions():
    assert_exact(lambda x: [x.hsplit(2), torch.vsplit(x, [1]), x.dsplit((2, 3))], rand(3, 4, 5, 6))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_parts_multiply_though_they_lie_on_other_ranks(dim):
    def gate(x):
        a, b = x.chunk(2, dim)
        return a * b.sigmoid()

    assert_exact(gate, rand(2, 4, 8, 6), grid=(2, 2))
    assert_exact(gate, rand(2, 4, 8, 6), grid=(3, 2))


def test_unbind_of_uncut_dimensions():
    assert_exact(lambda x: x.unbind(1), rand(2, 3, 5, 6))
    assert_exact(lambda x: torch.unbind(x), rand(2, 3, 5, 6), grid=(1, 2))
    assert_exact(lambda x: sum(a * i for i, a in enumerate(x)), rand(3, 2, 5, 6))
    assert_refused(lambda x: x.unbind(-1), rand(1, 1, 5, 6), match="dimension -1 is split")


def test_index_select_of_uncut_dimensions():
    index = torch.tensor([2, 0, 2])
    assert_exact(lambda x: x.index_select(1, index), rand(2, 3, 5, 6))
    assert_exact(lambda x: torch.index_select(x, -2, index), rand(2, 3, 5, 6), grid=(1, 3))
    assert_refused(
        lambda x: x.index_select(2, index), rand(1, 1, 5, 6), match="dimension -2 is split"
    )


def test_a_part_is_a_view_on_every_rank():
    def program(x, y):
        x = x * 1
        x.narrow(2, 1, 3).mul_(2)
        x.select(3, 2).add_(1)
        x.select(2, -1).copy_(y.select(2, 0))
        x.select(0, 1).zero_()
        x.narrow(3, 0, 2).sub_(y.narrow(3, 5, 2))
        return x

    assert_exact(program, rand(2, 3, 7, 9), rand(2, 3, 7, 9, seed=1), grid=(2, 2))
    assert_exact(program, rand(2, 3, 7, 9), rand(2, 3, 7, 9, seed=1), grid=(9, 2))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x.narrow(2, 3, 4), "exceeds"),
        (lambda x: x.select(2, 5), "out of range"),
        (lambda x: x.select(7, 0), "Dimension out of range"),
        (lambda x: x.split([1, 2], 2), "split_with_sizes"),
        (lambda x: x.chunk(0, 2), "chunk"),
    ],
)
def test_pytorchs_own_errors(fn, message):
    with pytest.raises((RuntimeError, IndexError), match=message) as one_process:
        fn(rand(1, 2, 5, 6))
    assert_refused(fn, rand(1, 2, 5, 6), grid=(3, 2), error=one_process.type, match=message)


def test_joined_dimensions_are_refused_and_their_neighbours_are_not():
    assert_exact(lambda x: x.flatten(2).narrow(1, 1, 2), rand(2, 3, 5, 6))
    assert_exact(
        lambda x: [a.unflatten(-1, (5, 6)) for a in x.flatten(2).unbind(1)], rand(2, 3, 5, 6)
    )
    assert_refused(lambda x: x.flatten(2).narrow(2, 1, 2), rand(2, 3, 5, 6), match="flattened")
    assert_refused(lambda x: x.flatten(2).select(2, 1), rand(2, 3, 5, 6), match="flattened")
