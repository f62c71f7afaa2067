"""How many layers each stage gets: against all the ways there are."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mpi4dl.errors import PlanError
from mpi4dl.models import amoebanet_d, resnet_v2, unet
from mpi4dl.pipeline import balanced, estimate


def every_way(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *cut, layers))) for cut in cuts]


def times(costs: list[int], counts: tuple[int, ...], speeds: list[int]) -> list[float]:
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    sums = (sum(costs[a:b]) for a, b in pairwise(ends))
    return [total / speed for total, speed in zip(sums, speeds, strict=True)]


@given(
    costs=st.lists(st.integers(0, 9), min_size=1, max_size=9),
    speeds=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
)
def test_the_slowest_stage_is_as_fast_as_can_be_and_the_others_are_like_it(costs, speeds):
    speeds = speeds[: len(costs)]
    found = balanced(costs, len(speeds), speeds)
    ways = every_way(len(costs), len(speeds))
    assert found in ways
    slowest = min(max(times(costs, way, speeds)) for way in ways)
    assert max(times(costs, found, speeds)) == slowest

    def square(way: tuple[int, ...]) -> float:
        return sum(t * t for t in times(costs, way, speeds))

    fit = [way for way in ways if max(times(costs, way, speeds)) <= slowest]
    assert square(found) == min(map(square, fit))


@pytest.mark.parametrize(
    ("costs", "stages", "counts"),
    [
        ([1] * 10, 4, (3, 3, 2, 2)),
        ([5, 1, 1, 1], 2, (1, 3)),
        ([1, 1, 1, 5], 2, (3, 1)),
        ([0, 0, 0], 3, (1, 1, 1)),
        ([2.5], 1, (1,)),
    ],
)
def test_examples(costs, stages, counts):
    assert balanced(costs, stages) == counts


def test_a_stage_of_four_ranks_takes_four_times_as_much():
    assert balanced([1] * 10, 2, [4, 1]) == (8, 2)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (([1, 1], 3), "2 layers cannot be shared out to 3 stages: .* use split_size 1 to 2"),
        (([1, 1], 0), "2 layers cannot be shared out to 0 stages"),
        (([1, 1], 2, [1]), r"2 stages with the speeds \(1,\)"),
        (([1, 1], 2, [1, 0]), r"give every stage a speed above 0"),
        (([1, -1], 2), "layers of at least -1: .* no layer a cost below"),
    ],
)
def test_what_cannot_be_balanced(arguments, why):
    with pytest.raises(PlanError, match=why):
        balanced(*arguments)


# ── estimates ────────────────────────────────────────────────────────────────────────────────────


def test_arithmetic_and_traffic_of_a_convolution():
    flops = 2 * 8 * 8 * 6 * (3 * 9)
    numbers = 3 * 100 + 6 * 27 + 6 * 64  # image, weights and output
    (cost,) = estimate([nn.Conv2d(3, 6, 3, bias=False)], (1, 3, 10, 10))
    assert cost == flops + 10 * 4 * numbers


def test_views_cost_nothing():
    assert estimate([nn.Flatten(), nn.Identity()], (2, 3, 4)) == (0, 0)


@pytest.mark.parametrize("model", [resnet_v2(20), amoebanet_d(3, 16), unet(base=4, depth=2)])
def test_models_have_estimates_and_stay_as_they_are(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    called = []
    model[0].register_forward_hook(lambda *_: called.append(1))
    costs = estimate(list(model), (2, 3, 32, 32))
    assert len(costs) == len(model)
    assert min(costs) > 0
    assert not called
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_larger_images_cost_more():
    layers = list(resnet_v2(20))
    small, large = (sum(estimate(layers, (1, 3, n, n))) for n in (32, 64))
    assert 3 < large / small < 4.1


def test_an_example_may_be_a_tensor():
    linear = nn.Linear(3, 4).double()
    assert estimate([linear], torch.zeros(2, 3, dtype=torch.float64)) > estimate(
        [nn.Linear(3, 4)], (2, 3)
    )


class Stubborn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum().item() > 0 else x


def test_a_layer_that_does_not_run_without_data_makes_parameters_count():
    layers = [nn.Linear(3, 3), Stubborn(), nn.ReLU()]
    with pytest.warns(UserWarning, match=r"layer 1, Stubborn, does not run on the meta device"):
        assert estimate(layers, (2, 3)) == (12, 12, 0)
