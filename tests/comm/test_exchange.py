"""The transfer that tiles really make: values, and backward as the adjoint of forward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mpi4dl
from mpi4dl.comm.exchange import all_reduce_sum, transfer
from mpi4dl.geometry import Box, Layout, Transfer
from support.exactness import rand
from support.layouts import boxes_near, layouts
from support.ranks import UNDER_TORCHRUN, every_rank_raises, run_ranks

MEMORY = {
    2: (torch.contiguous_format, torch.channels_last),
    3: (torch.contiguous_format, torch.channels_last_3d),
}


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """To boxes anywhere, or to those that the ranks hold; then nothing is sent."""
    layout = draw(layouts())
    if draw(st.integers(0, 9)) == 0:
        return Transfer(layout, layout.boxes)
    return Transfer(layout, tuple(draw(boxes_near(layout.size)) for _ in layout.boxes))


def whole_numbers(*shape: int, seed: int) -> torch.Tensor:
    """Sums of these are exact, so that equal means equal."""
    return (rand(*shape, seed=seed) * 5).round()


def padded(image: torch.Tensor, box: Box, fill: float) -> torch.Tensor:
    """A box of the image, `fill` where it lies outside."""
    out = torch.full((*image.shape[:2], *box.shape), fill, dtype=image.dtype)
    inside = box.intersect(Box.full(image.shape[2:]))
    if not inside.empty:
        everything = (slice(None), slice(None))
        source = inside.slices_in(Box.full(image.shape[2:]))
        out[(*everything, *inside.slices_in(box))] = image[(*everything, *source)]
    return out


@pytest.mark.skipif(UNDER_TORCHRUN, reason="asks for another number of ranks each time")
@settings(max_examples=60)
@given(transfers(), st.booleans(), st.sampled_from([0.0, -3.0]))
def test_every_rank_gets_what_it_wants_and_backward_is_the_adjoint(moves, last, fill):
    """⟨T x, y⟩ = ⟨x, T* y⟩, summed over the ranks, without any rounding."""
    layout, axes = moves.layout, len(moves.layout.size)
    image = whole_numbers(1, 2, *layout.size, seed=1)
    memory = MEMORY.get(axes, (torch.contiguous_format,) * 2)[last]

    def program(comm):
        own = padded(image, layout.boxes[comm.rank], 0.0)
        x = own.contiguous(memory_format=memory).requires_grad_()
        got = transfer(x, moves, tuple(range(-axes, 0)), comm, fill)
        assert torch.equal(got, padded(image, moves.targets[comm.rank], fill))
        y = whole_numbers(*got.shape, seed=2 + comm.rank)
        (back,) = torch.autograd.grad(got, x, y, allow_unused=True)
        assert back.shape == x.shape
        outside = padded(torch.zeros_like(image), moves.targets[comm.rank], fill)
        products = torch.stack([((got - outside) * y).sum(), (x * back).sum()]).detach()
        comm.all_reduce(products)
        assert products[0] == products[1]

    run_ranks(layout.ranks, program)


def test_the_dimensions_of_a_layout_may_lie_anywhere_in_the_tensor():
    layout = Layout.grid((5, 7), (2, 2))
    moves = Transfer(layout, (Box.full((5, 7)),) * 4)
    image = rand(5, 3, 7)

    def program(comm):
        rows, columns = layout.boxes[comm.rank].slices_in(Box.full((5, 7)))
        return transfer(image[rows][..., columns], moves, (-3, -1), comm)

    assert all(torch.equal(got, image) for got in run_ranks(4, program))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_any_dtype_travels(dtype):
    layout = Layout.grid((6,), (3,))
    moves = Transfer(layout, (Box.of((0, 6)), Box.of((1, 5)), Box.of((0, 0))))
    image = torch.arange(6).remainder(2).to(dtype)

    def program(comm):
        own = image[layout.boxes[comm.rank].slices_in(Box.full((6,)))]
        got = transfer(own, moves, (-1,), comm)
        return torch.equal(got, image[moves.targets[comm.rank].slices_in(Box.full((6,)))])

    assert all(run_ranks(3, program))


def test_an_all_reduce_is_its_own_adjoint():
    def program(comm):
        x = rand(3, seed=comm.rank).requires_grad_()
        y = rand(3, seed=10 + comm.rank)
        total = all_reduce_sum(x, comm)
        (back,) = torch.autograd.grad(total, x, y)
        products = torch.stack([(total * y).sum(), (x * back).sum()]).detach()
        comm.all_reduce(products)
        assert products[0].item() == pytest.approx(products[1].item(), rel=1e-14)

    run_ranks(4, program)


@pytest.mark.parametrize("way", ["transfer", "all-reduce"])
def test_second_derivatives_are_refused_on_every_rank(way):
    layout = Layout.grid((4,), (2,))
    moves = Transfer(layout, (Box.full((4,)),) * 2)

    def program(comm):
        x = rand(2).requires_grad_()
        y = transfer(x, moves, (-1,), comm) if way == "transfer" else all_reduce_sum(x, comm)
        torch.autograd.grad(y.square().sum(), x, create_graph=True)

    every_rank_raises(2, program, mpi4dl.UnsupportedOperator, "create_graph=True")
