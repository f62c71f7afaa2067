"""What a tile says of itself, and what may be put in its place."""

from __future__ import annotations

import pytest
import torch

import mpi4dl
from mpi4dl import Tile, shard
from support.exactness import assert_exact, assert_refused, rand
from support.ranks import run_ranks


@pytest.mark.parametrize("name", ["data", "grad"])
def test_a_whole_tensor_in_the_place_of_a_tile_is_narrowed(name):
    whole, other = rand(1, 2, 7, 5, seed=1), mpi4dl.Layout.grid((7, 5), (4, 1))

    def program(comm):
        tile = shard(rand(1, 2, 7, 5), grid=(2, 2))
        for value in (whole, shard(whole, grid=(2, 2)), shard(whole, layout=other)):
            setattr(tile, name, value)
            assert torch.equal(getattr(tile, name).full_tensor(), whole)
        with pytest.raises(mpi4dl.UnsupportedOperator, match="in the place of"):
            setattr(tile, name, rand(1, 2, 4, 3))

    run_ranks(4, program)


def test_a_new_tensor_is_not_made_of_a_part():
    assert_refused(lambda x: x.new_tensor(x), rand(1, 2, 8, 8), match="needs the whole")


def test_the_tile_may_be_named_input():
    def every(x):
        return torch.clone(input=x), torch.ones_like(input=x), torch.relu(input=x)

    assert_exact(every, rand(1, 2, 7, 5), grid=(2, 2))


def test_a_plain_tensor_takes_the_dtype_of_a_tile_and_stays_plain():
    def program(comm):
        tile = shard(rand(1, 2, 7, 5), grid=(2, 2))
        for cast in (torch.zeros(3).to(tile), torch.zeros(3).type_as(tile)):
            assert type(cast) is torch.Tensor
            assert cast.dtype == torch.float64
        assert isinstance(tile.to(torch.zeros(1)), Tile)

    run_ranks(4, program)


WRITES = {
    "view_as": lambda x: x.view_as(torch.empty(2, 3, 3, 3, 6)).mul_(2),
    "detach": lambda x: x.view(2, 3, 3, 3, 6).detach().mul_(2),
    "data": lambda x: x.view(2, 3, 3, 3, 6).data.zero_(),
    "a view of the view": lambda x: x.view(2, 3, 3, 3, 6)[0].add_(1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_through_what_shares_the_memory_of_a_copied_view_is_refused(name):
    def program(comm):
        with pytest.raises(mpi4dl.UnsupportedOperator, match="had to move"):
            WRITES[name](mpi4dl.shard(rand(2, 3, 9, 6), (2, 2)) * 1)

    run_ranks(4, program)


@pytest.mark.parametrize(
    ("size", "grid"), [((2, 2), (2, 2)), ((3, 5), (3, 1)), ((2, 5), (3, 1)), ((3, 2), (1, 5))]
)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_contiguous_is_a_copy_on_all_ranks_or_on_none(size, grid, memory):
    """Tiles of one pixel or none are contiguous in every order, the image is not."""

    def last(x):
        y = x * 1
        z = y.permute(0, 2, 3, 1).contiguous().relu_()
        return y * z.permute(0, 3, 1, 2)

    def formatted(x):
        y = x * 1
        z = y.contiguous(memory_format=memory).mul_(2)
        return y + z.contiguous(memory_format=memory).mul_(3) + z

    for image in (rand(2, 3, *size), rand(2, 3, *size).to(memory_format=torch.channels_last)):
        for function in (last, formatted):
            assert_exact(function, image, grid=grid)
