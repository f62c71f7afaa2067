"""flip, roll, rot90, and the operators that repeat or expand."""

from __future__ import annotations

import pytest
import torch

from support.exactness import assert_exact, assert_refused, rand
from support.layouts import NOT_A_GRID

GRIDS_2D = [(1, 2), (3, 1), (2, 2), (2, 3)]
CASES = {
    "flip": lambda x: [x.flip(2), torch.flip(x, dims=[0, 3]), x.flip(-1, -2), x.flip((1, 2, 3))],
    "flip by name": lambda x: [x[0, 0].flipud(), torch.fliplr(x[0, 0]), x.flipud(), x.fliplr()],
    "roll": lambda x: [
        x.roll(2, -1),
        torch.roll(x, (-3, 1), dims=(2, 3)),
        x.roll(100, 2),
        x.roll(0, 3),
    ],
    "roll twice": lambda x: x.roll((1, 1, -1), (2, 1, 2)),
    "rot90": lambda x: [torch.rot90(x, k, (2, 3)) for k in (-1, 0, 1, 2, 3)],
    "rot90 of others": lambda x: [x.rot90(1, [0, 2]), x.rot90(k=3, dims=(-1, 1)), x.rot90()],
    "repeat": lambda x: [x.repeat(2, 1, 1, 3), x.repeat((3, 1, 2, 1, 2)), x.repeat(1, 2, 1, 1)],
    "repeat nothing": lambda x: [x.repeat(1, 1, 0, 1), x.repeat(0, 1, 2, 1), x.repeat(1, 1, 1, 1)],
    "tile": lambda x: [x.tile(2), x.tile((2, 1)), torch.tile(x, dims=(2, 1, 1, 1, 2))],
    "repeat_interleave": lambda x: [
        x.repeat_interleave(3, -1),
        torch.repeat_interleave(x, 2, dim=2),
        x.repeat_interleave(torch.tensor([2, 0, 1]), 1),
        x.repeat_interleave(2, 1),
        x.repeat_interleave(repeats=0, dim=2),
    ],
    "expand": lambda x: [
        x[:, :1].expand(-1, 4, -1, -1),
        x.expand(3, *x.shape) * 2,
        torch.broadcast_to(x[:, 2:], (2, 5, *x.shape[2:])),
        x[:, :1].expand_as(x),
        x[:, 0].unsqueeze(1).expand(size=x.shape),
    ],
    "expand what is plain": lambda x: x.mean((2, 3), keepdim=True).expand_as(x) * x,
    "broadcast": lambda x: torch.broadcast_tensors(x, x[:, :1], x.mean((2, 3), keepdim=True)),
    "upsample by hand": lambda x: x[..., None, :, None].expand(-1, -1, -1, 2, -1, 2).clone(),
}


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("name", CASES)
def test_on_grids(name, grid):
    assert_exact(CASES[name], rand(2, 3, 7, 6), grid=grid)


@pytest.mark.parametrize("name", CASES)
def test_on_any_boxes(name):
    assert_exact(CASES[name], rand(2, 3, 9, 12), layout=NOT_A_GRID)
    assert_exact(CASES[name], rand(2, 3, 3, 4), grid=(5, 2))
    assert_exact(CASES[name], rand(2, 3, 5, 4), grid=(2, 2), dims=(0, 2))


def test_rows_and_volumes():
    assert_exact(lambda x: [x.flip(2), x.roll(4, 2), x.repeat(1, 1, 3)], rand(2, 3, 11), grid=(4,))
    assert_exact(
        lambda x: [x.flip((2, 4)), x.roll((1, 2), (3, 4)), x.rot90(1, (2, 4))],
        rand(1, 2, 5, 4, 6),
        grid=(2, 2, 2),
    )


def test_what_is_shifted_still_combines_with_what_is_not():
    def program(x):
        return x + x.flip(2) * x.roll(1, 3) - x.rot90(2, (2, 3)) + x.roll((1, 1), (2, 3))[:, :1]

    assert_exact(program, rand(1, 2, 7, 9), grid=(2, 3))
    assert_exact(program, rand(1, 2, 9, 12), layout=NOT_A_GRID)


def test_shifted_windows_as_in_swin():
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 2, 3, stride=3)

        def forward(self, x):
            return self.conv(torch.roll(x, (-1, -1), (2, 3))).repeat_interleave(3, 2).roll(1, 2)

    assert_exact(Shifted(), rand(1, 2, 9, 12), grid=(2, 2))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x.roll(1), "Name the dimensions"),
        (lambda x: x.flatten(2).flip(2), "flattened"),
        (lambda x: x.flatten(2).roll(1, 2), "flattened"),
        (lambda x: x.flatten(2).repeat(1, 1, 2), "flattened"),
        (lambda x: x.repeat_interleave(2), "Name the dimension"),
        (lambda x: x.repeat_interleave(torch.arange(5), 2), "dimension -2 is split"),
        (lambda x: x[:, :, :1].expand(-1, -1, 4, -1), "one of them has it"),
    ],
)
def test_what_is_refused(fn, message):
    assert_refused(fn, rand(2, 3, 5, 6), match=message)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x.expand(1, 3, 5, 7), "expanded size"),
        (lambda x: x.flip(4), "Dimension out of range"),
        (lambda x: x.roll((1, 2), 2), "shifts and dimensions"),
        (lambda x: x.rot90(1, (2, 2)), "rotation dims"),
        (lambda x: x.repeat(2, 2), "repeat"),
    ],
)
def test_pytorchs_own_errors(fn, message):
    with pytest.raises((RuntimeError, IndexError), match=message):
        fn(rand(1, 3, 5, 6))
    assert_refused(fn, rand(1, 3, 5, 6), error=(RuntimeError, IndexError), match=message)
