"""Pooling that overlaps with its halo equals the general path, its reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mpi4dl
from mpi4dl.spatial import halo_pool, pooling
from support.exactness import Constant, assert_exact, compare, on_tiles, rand
from support.ranks import UNDER_TORCHRUN

POOLS = [
    nn.MaxPool2d(3, 1, 1),
    nn.MaxPool2d(3, 2, 1),
    nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    nn.MaxPool2d(5, 1, 2),
    nn.MaxPool2d((7, 3), 1, (3, 1)),
    nn.MaxPool2d(3, (1, 2), 1),
    nn.AvgPool2d(3, 1, 1),
    nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    nn.AvgPool2d(5, 1, 2, divisor_override=7),
]
GRIDS = [(2, 1), (1, 2), (2, 2), (3, 2)]


@pytest.fixture
def calls(monkeypatch):
    """How often the overlapping path was taken, by all ranks together."""
    taken: list[int] = []
    original = halo_pool.pool

    def counted(*args):
        taken.append(1)
        return original(*args)

    monkeypatch.setattr(pooling, "pool", counted)
    return taken


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("size", [(24, 16), (25, 17)])
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_it_equals_one_process_and_the_general_path(pool, size, grid, calls, monkeypatch):
    ties = torch.relu(rand(2, 3, *size) - 0.5)
    for x in (rand(2, 3, *size), ties):
        assert_exact(pool, x, grid=grid)
        assert_exact(pool, Constant(x), grid=grid)
    overlapping = on_tiles(pool, [ties], grid)
    if size == (24, 16) and not pool.ceil_mode:
        assert len(calls) == 5 * (1 if UNDER_TORCHRUN else grid[0] * grid[1])
    monkeypatch.setattr(pooling._Geometry, "overlapping", lambda *args: None)
    compare(overlapping, on_tiles(pool, [ties], grid), "the general path")


def test_volumes_unbatched_images_and_a_cut_batch(calls):
    for pool in (nn.MaxPool3d(3, 1, 1), nn.AvgPool3d(3, 2, 1, count_include_pad=False)):
        assert_exact(pool, rand(1, 2, 8, 12, 8), grid=(2, 1, 2))
        assert_exact(pool, rand(1, 2, 8, 12, 8), grid=(2, 2), dims=(-3, -2))
    for pool in (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 2, 1)):
        assert_exact(pool, rand(2, 12, 8), grid=(2, 2))
        assert_exact(pool, rand(4, 2, 8, 12), grid=(2, 2), dims=(0, 3))
    assert len(calls) == 8 * (1 if UNDER_TORCHRUN else 4)


def test_boxes_that_are_no_grid(calls):
    box = mpi4dl.Box.of
    boxes = (box((0, 6), (0, 18)), box((6, 18), (0, 6)), box((6, 18), (6, 18)))
    layout = mpi4dl.Layout((18, 18), boxes)
    for pool in (nn.MaxPool2d(5, 1, 2), nn.AvgPool2d(3, 1, 1, count_include_pad=False)):
        assert_exact(pool, rand(1, 2, 18, 18), layout=layout)
    assert len(calls) == 2 * (1 if UNDER_TORCHRUN else 3)


def test_windows_wider_than_tiles_take_the_general_path(calls):
    """Alone with its padding a tile could have windows without a pixel, or be refused."""
    for pool in (nn.MaxPool2d(9, 1, 4), nn.MaxPool2d((2, 1), 1, (1, 0), (2, 1))):
        assert_exact(pool, rand(1, 2, 8, 12), grid=(4, 2))
    assert_exact(nn.AvgPool3d(3, 1, 1), rand(1, 2, 6, 8, 8), grid=(3, 1, 1))
    assert not calls


def test_what_does_not_fit_takes_the_general_path(calls):
    assert_exact(nn.MaxPool2d(3, 2, 1), rand(1, 2, 10, 8), grid=(2, 1))
    assert_exact(nn.MaxPool2d(3), rand(1, 2, 12, 8), grid=(2, 1))
    assert_exact(nn.MaxPool2d(3, 1, 1), rand(1, 2, 2, 8), grid=(3, 1))
    assert_exact(nn.MaxPool2d(2), rand(1, 2, 8, 8), grid=(2, 2))
    assert not calls


def test_the_memory_format_stays():
    def program(x):
        x = x.contiguous(memory_format=torch.channels_last)
        for pool in (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 2, 1)):
            out = pool(x).to_local()
            assert out.is_contiguous(memory_format=torch.channels_last)
        return x

    on_tiles(program, [rand(2, 3, 8, 12)], (2, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_of_large_halves_do_not_overflow(dtype):
    def program(x):
        y = nn.AvgPool2d(3, 1, 1, count_include_pad=False)(x.to(dtype) * 0 + 60000)
        assert y.to_local().dtype == dtype
        assert y.isfinite().all()
        return y.double()

    on_tiles(program, [rand(1, 2, 8, 8)], (2, 2))


class LargeCopies(TorchDispatchMode):
    """The names of operators that fill or copy at least as many numbers as `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.found = size, list[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        fills = ("clone", "copy_", "zero_", "fill_", "zeros", "new_zeros", "zeros_like", "cat")
        if name in fills and isinstance(out, torch.Tensor) and out.numel() >= self.size:
            self.found.append(name)
        return out


def test_backward_of_a_maximum_copies_no_tile_and_makes_no_zeros_of_its_size():
    """What PyTorch's own kernel sets to zero it sets inside."""

    def program(x):
        y = x * 1
        out = F.max_pool2d(y, 3, 1, 1).to_local()
        with LargeCopies(y.to_local().numel() // 2) as copies:
            torch.autograd.grad(out, y, torch.ones_like(out))
        assert copies.found == []
        return y

    on_tiles(program, [rand(1, 2, 16, 16)], (2, 1))
