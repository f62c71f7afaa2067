"""The tests' own tools notice what they are there to notice."""

from __future__ import annotations

import pytest
import torch

from mpi4dl.geometry import Layout
from support.exactness import assert_exact, assert_refused, rand
from support.ranks import UNDER_TORCHRUN, every_rank_raises

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="what one rank does alone, others wait for")


def test_a_rank_that_refuses_alone_is_noticed():
    def alone(comm):
        if comm.rank == 1:
            raise ValueError("no")

    with pytest.raises(AssertionError, match="rank 0 raised None"):
        every_rank_raises(2, alone, ValueError)


def test_ranks_that_refuse_differently_are_noticed():
    def differently(comm):
        raise ValueError(f"no, says rank {comm.rank}")

    with pytest.raises(AssertionError, match="the ranks say"):
        every_rank_raises(2, differently, ValueError, match="no")
    every_rank_raises(2, differently, ValueError, match="no", alike=False)
    with pytest.raises(AssertionError, match="lacks 'yes'"):
        every_rank_raises(2, differently, ValueError, match="yes")


def test_what_is_answered_is_not_refused():
    with pytest.raises(AssertionError, match="rank 0 raised None"):
        assert_refused(torch.relu, rand(1, 1, 4, 4))


@pytest.mark.parametrize("part", ["output", "gradient of input 0"])
def test_a_wrong_number_is_noticed(part):
    def wrong(x):
        x = x * 1
        if hasattr(x, "to_local"):
            return x * (1 + 1e-9) if part == "output" else x + 1e-9 * (x - x.detach())
        return x

    with pytest.raises(AssertionError, match=part):
        assert_exact(wrong, rand(1, 1, 4, 4))


def test_a_layout_with_as_many_ranks_as_boxes():
    assert_exact(torch.relu, rand(5, 6), layout=Layout.square((5, 6), 5))
