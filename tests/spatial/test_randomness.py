"""Random operators: what can be said of them on every rank. The numbers themselves are drawn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mpi4dl import Tile
from support.exactness import assert_refused, on_tiles, rand


def test_dropout_drops_or_scales_every_value_of_the_whole_image():
    x = rand(2, 3, 40, 50)
    for drop in (F.dropout, F.dropout2d, torch.dropout):
        (got,) = on_tiles(lambda x, f=drop: f(x, 0.5, True), [x], (2, 3)).outputs
        dropped = got == 0
        assert torch.equal(got[~dropped], 2 * x[~dropped])
        assert 0 < dropped.sum() < x.numel() or drop is F.dropout2d


def test_what_is_drawn_like_a_tile_is_a_tile():
    def every(x):
        drawn = torch.rand_like(x), torch.randint_like(x, 9), torch.bernoulli(x.sigmoid())
        assert all(isinstance(t, Tile) for t in drawn)
        return drawn

    uniform, whole, coins = on_tiles(every, [rand(2, 3, 40, 50)], (2, 3)).outputs
    assert 0.45 < uniform.mean() < 0.55
    assert set(whole.unique().tolist()) == set(range(9))
    assert set(coins.unique().tolist()) == {0.0, 1.0}
    # Not one pattern for every tile.
    assert len({part.sum().item() for part in uniform.split(20, 2)}) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.bernoulli_(x.sigmoid()),
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: F.gumbel_softmax(x),
        lambda x: torch.poisson(x.abs()),
        lambda x: torch.native_dropout(x, 0.5, True),
    ],
)
def test_what_tiles_cannot_draw_is_refused(call):
    assert_refused(lambda x: call(x * 1), rand(1, 2, 8, 8))
