"""cat and stack of tiles, of tiles with other boxes, and of tiles with plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mpi4dl
from mpi4dl.comm.threads import run_threads
from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID
from support.ranks import run_ranks

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]


def three(dim):
    """Tensors that can be joined along `dim`."""
    sizes = [[2, 3, 7, 6] for _ in range(3)]
    sizes[1][dim], sizes[2][dim] = 5, 1
    return [rand(*s, seed=i) for i, s in enumerate(sizes)]


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -2])
def test_cat_of_tiles_and_plain_tensors(dim, grid):
    def join(a, b, c):
        return [
            torch.cat([a, b, c], dim),
            torch.concat((b, a), dim=dim),
            torch.concatenate([c, b, a], axis=dim) * 2,
            torch.cat(tensors=[a, a], dim=dim),
            torch.cat([b], dim),
        ]

    assert_exact(join, *three(dim), grid=grid)
    assert_exact(lambda a, b, c: torch.cat([a, b, c], dim), *three(dim), grid=grid, plain=(0, 2))
    assert_exact(lambda a, b, c: torch.cat([a, b, c], dim), *three(dim), grid=grid, plain=(1,))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_cat_in_layouts_of_all_kinds(dim):
    others = [mpi4dl.Layout.from_cuts((9, 12), cuts) for cuts in ([(2, 3), ()], [(), (0, 11)])]

    def join(x):
        parts = [x] + [x.redistribute(o) if isinstance(x, mpi4dl.Tile) else x for o in others]
        return [torch.cat(parts, dim), torch.cat(parts[::-1], dim), torch.stack(parts, dim)]

    for layout in (NOT_A_GRID, *others):
        assert_exact(join, rand(1, 2, 9, 12), layout=layout)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_cat_of_tiles_that_are_cut_along_different_dimensions(dim):
    def program(comm):
        a, b = (rand(3, 2, 5, 6, seed=s).requires_grad_() for s in (0, 1))
        plain = rand(3, 2, 5, 6, seed=2)
        tiles = [mpi4dl.shard(a, (2, 2), (2, 3)), mpi4dl.shard(b, (4,), (0,)), plain]
        results = []
        for order in ([0, 1, 2], [1, 2, 0]):
            joined = torch.cat([tiles[i] for i in order], dim).full_tensor()
            whole = torch.cat([[a, b, plain][i] for i in order], dim)
            assert torch.equal(joined, whole)
            results.append((joined, whole))
        seed = rand(*results[0][0].shape)
        ours, theirs = (
            torch.autograd.grad(sum((r[i] * seed).sum() for r in results), (a, b)) for i in (0, 1)
        )
        for mine, grad in zip(ours, theirs, strict=True):
            mine = mine.clone()
            comm.all_reduce(mine)
            torch.testing.assert_close(mine / comm.size, grad, rtol=0, atol=1e-14)
        return True

    assert all(run_ranks(4, program))


def test_cat_with_more_ranks_than_rows_and_with_empty_tensors():
    assert_exact(
        lambda x, y: torch.cat([x, y, x], 2), rand(1, 2, 2, 3), rand(1, 2, 3, 3), grid=(5, 2)
    )
    assert_exact(lambda x, y: torch.cat([x, y], 1), rand(1, 2, 2, 3), rand(1, 4, 2, 3), grid=(5, 2))
    assert_exact(lambda x: torch.cat([x[:, :, :0], x, x[:, :, 4:4]], 2), rand(1, 2, 5, 6))
    assert_exact(lambda x: torch.cat([x[:, :, :0], x[:, :, 4:4]], 2), rand(1, 2, 5, 6))
    assert_exact(lambda x: torch.cat([torch.tensor([]), x[:, :, 1:3]], 1), rand(1, 2, 5, 6))
    assert_exact(lambda x: torch.cat([x[:, :0], x], 1), rand(1, 2, 5, 6))


def test_cat_and_stack_of_one_and_three_dimensions():
    for grid in [(2,), (3,), (7,)]:
        assert_exact(lambda a, b: torch.cat([a, b, a], -1), rand(2, 3, 5), rand(2, 3, 4), grid=grid)
        assert_exact(lambda a, b: torch.cat([a, b, a]), rand(5), rand(4), grid=grid)
    x, y = rand(1, 2, 4, 5, 6), rand(1, 2, 4, 3, 6, seed=1)
    assert_exact(lambda a, b: torch.cat([a, b], 3), x, y, grid=(2, 2, 2))
    assert_exact(lambda a, b: torch.cat([a, b], 3), x, y, grid=(2, 3), dims=(0, 3))


@pytest.mark.parametrize("dim", [0, 1, 2, 4, -1, -2, -5])
def test_stack(dim):
    x, y = rand(2, 3, 5, 6), rand(2, 3, 5, 6, seed=1)
    assert_exact(lambda a, b: torch.stack([a, b, a], dim).relu(), x, y, grid=(2, 2))
    assert_exact(lambda a, b: torch.stack((a, b), dim=dim), x, y, grid=(3, 1), plain=(1,))
    assert_exact(lambda a, b: torch.stack(tensors=(a, b), dim=dim).sum(dim), x, y, plain=(0,))


def test_stacks_by_name():
    def join(a, b):
        return [
            torch.hstack([a, b]),
            torch.vstack((a, b)),
            torch.dstack([a, b]),
            torch.column_stack([a, b]),
        ]

    assert_exact(join, rand(2, 3, 4, 5), rand(2, 3, 4, 5, seed=1))
    assert_refused(lambda x: torch.vstack([x, x]), rand(5), grid=(2,), match="add dimensions")


def test_dtypes_are_promoted():
    assert_exact(lambda x: torch.cat([x, (x > 0), x.float()], 1), rand(1, 2, 5, 6))
    assert_exact(lambda x: torch.cat([x.float(), (x * 3).int()], 2), rand(1, 2, 5, 6))
    assert_exact(lambda x: torch.cat([torch.zeros(0).double(), x.float()], 2), rand(1, 2, 5, 6))


class Dense(nn.Module):
    """Dense blocks, and a skip connection between images of different sizes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(5, 4, 3, padding=1)
        self.down = nn.Conv2d(9, 4, 2, stride=2)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x):
        y = torch.cat([x, self.first(x)], 1)
        y = torch.cat([y, self.second(y)], 1)
        z = self.up(self.down(y))
        dy, dx = y.shape[2] - z.shape[2], y.shape[3] - z.shape[3]
        z = nn.functional.pad(z, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat([z, y], dim=1)


@pytest.mark.parametrize("size", [(9, 11), (8, 7), (3, 5)])
def test_dense_and_skip_connections(size):
    for grid in [(2, 2), (1, 3), (5, 1)]:
        assert_exact(Dense(), rand(1, 2, *size), grid=grid)


def test_flattened_tiles_join_along_other_dimensions_only():
    x, y = rand(2, 3, 5, 6), rand(2, 2, 5, 6, seed=1)
    assert_exact(lambda a, b: torch.cat([a.flatten(2), b.flatten(2)], 1).unflatten(2, (5, 6)), x, y)
    assert_refused(lambda a: torch.cat([a.flatten(2), a.flatten(2)], 2), x, match="flattened")


@pytest.mark.parametrize("dim", [1, 2])
def test_pytorchs_own_errors(dim):
    assert_refused(
        lambda x: torch.cat([x, x[:, 1:, 1:]], dim),
        rand(1, 3, 5, 6),
        error=RuntimeError,
        match="Sizes of tensors must match",
    )
    assert_refused(
        lambda x: torch.stack([x, x[:, 1:]], dim),
        rand(1, 3, 5, 6),
        error=RuntimeError,
        match="equal size",
    )
    assert_refused(lambda x: torch.cat([x, x], out=x), rand(1, 3, 5, 6), match="out=")


def test_tiles_of_the_same_boxes_join_without_a_message():
    def program(comm):
        x = mpi4dl.shard(rand(2, 3, 9, 11), grid=(2, 3))
        torch.cat([x, x.relu(), rand(2, 1, 9, 11)], 1)
        torch.stack([x, x])
        comm.all_reduce(torch.zeros(1))
        return comm.messages_sent

    assert run_threads(6, program) == [0] * 6
