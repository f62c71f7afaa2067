"""Losses on tiles are the losses of the whole image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from support.exactness import assert_exact, assert_refused, on_tiles, rand
from support.ranks import every_rank_raises, run_ranks

GRIDS = [(1, 2), (3, 1), (2, 3)]


def labels(*shape: int, classes: int = 4, ignore: int | None = None) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(5)
    y = torch.randint(0, classes, shape, generator=generator, device="cpu")
    if ignore is not None:
        y[torch.rand(shape, generator=generator, device="cpu") < 0.3] = ignore
    return y.to(torch.get_default_device())


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(weighted, smoothing, reduction, grid):
    weight = torch.tensor([0.5, 1.0, 2.0, 0.1], dtype=torch.float64) if weighted else None

    def loss(x, y):
        return F.cross_entropy(
            x, y, weight, ignore_index=3, reduction=reduction, label_smoothing=smoothing
        )

    y = labels(2, 7, 9)
    assert_exact(loss, rand(2, 4, 7, 9), y, grid=grid)
    assert_exact(loss, rand(2, 4, 7, 9), y, grid=grid, plain=(1,))  # labels on every rank


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_with_probabilities(reduction, smoothing):
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

    def loss(x, p):
        return F.cross_entropy(
            x, p.softmax(1), weight, reduction=reduction, label_smoothing=smoothing
        )

    assert_exact(loss, rand(2, 3, 7, 9), rand(2, 3, 7, 9, seed=2), grid=(2, 2))


def test_cross_entropy_of_volumes():
    x, y = rand(2, 4, 3, 5, 6), labels(2, 3, 5, 6)
    assert_exact(F.cross_entropy, x, y, grid=(2, 2))
    assert_exact(F.cross_entropy, x, y, grid=(3, 1, 2))


def test_a_batch_that_is_cut():
    """The target has no class dimension, so it is narrowed, not sharded, by the harness."""
    assert_exact(F.cross_entropy, rand(5, 4), labels(5), grid=(3,), dims=(0,))
    assert_exact(F.cross_entropy, rand(5, 4, 6, 7), labels(5, 6, 7), grid=(3,), dims=(0,))
    assert_exact(
        F.cross_entropy, rand(5, 4, 6, 7), labels(5, 6, 7), grid=(2, 2), dims=(0, 2), plain=(1,)
    )


def test_ignored_everywhere_is_nan_as_in_one_process():
    y = torch.full((1, 4, 4), -100)
    value = on_tiles(F.cross_entropy, [rand(1, 3, 4, 4), y], (2, 1)).outputs[0]
    assert value.isnan()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss(reduction):
    def loss(x, y):
        return F.nll_loss(F.log_softmax(x, 1), y, ignore_index=1, reduction=reduction)

    assert_exact(loss, rand(2, 4, 7, 9), labels(2, 7, 9), grid=(2, 2))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy_with_logits,
        F.soft_margin_loss,
        F.poisson_nll_loss,
        F.kl_div,
    ],
    ids=lambda f: f.__name__,
)
def test_pointwise_losses(loss, reduction, grid):
    def program(x, y):
        return loss(x, y.detach() if loss is F.soft_margin_loss else y, reduction=reduction)

    assert_exact(program, rand(2, 3, 7, 5), rand(2, 3, 7, 5, seed=1), grid=grid)
    assert_exact(program, rand(2, 3, 7, 5), rand(2, 3, 7, 5, seed=1), grid=grid, plain=(1,))


def test_weights_and_positive_weights():
    positive = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64).view(3, 1, 1)

    def loss(x, y, w):
        y, w = y.sigmoid(), w.sigmoid().detach()
        a = F.binary_cross_entropy_with_logits(x, y, weight=w, pos_weight=positive)
        return a + F.binary_cross_entropy(x.sigmoid(), y, w)

    args = [rand(2, 3, 7, 5, seed=i) for i in range(3)]
    assert_exact(loss, *args, grid=(2, 2))
    assert_exact(
        lambda x, y: F.kl_div(x, y.softmax(1), reduction="batchmean"), *args[:2], grid=(2, 2)
    )


def test_empty_tiles():
    assert_exact(F.cross_entropy, rand(1, 4, 2, 3), labels(1, 2, 3), grid=(3, 2))
    assert_exact(F.mse_loss, rand(1, 4, 2, 3), rand(1, 4, 2, 3, seed=3), grid=(3, 2))


def test_a_target_of_another_shape_is_an_error_on_every_rank():
    assert_refused(
        F.cross_entropy,
        rand(1, 4, 6, 6),
        labels(1, 5, 5),
        grid=(2, 1),
        plain=(1,),
        error=ValueError,
        match=r"target is \(1, 5, 5\)",
    )


def test_losses_without_a_rule_are_refused():
    x = rand(2, 3, 4, 4)
    assert_refused(F.triplet_margin_loss, x, x, x, grid=(2, 1), match="triplet_margin_loss")


def test_a_weighted_mean_of_squares_divides_by_the_weights():
    args = [rand(2, 3, 7, 5), rand(2, 3, 7, 5, seed=1), rand(2, 3, 7, 5, seed=2).abs() + 0.1]
    for reduction in ("mean", "sum", "none"):

        def loss(x, y, w, how=reduction):
            return F.mse_loss(x, y, weight=w, reduction=how)

        assert_exact(loss, *args, grid=(2, 2))
        assert_exact(loss, *args, grid=(2, 2), plain=(2,))
    assert_exact(lambda x, y, w: F.huber_loss(x, y, weight=w), *args, grid=(2, 2))


def test_the_weight_that_pytorch_drops_is_noticed():
    x = rand(2, 3, 4, 4)
    assert_refused(lambda x: F.l1_loss(x, x, weight=x.abs()), x, grid=(2, 1), match="weight")
    assert_exact(lambda x: F.l1_loss(x, 2 * x), x, grid=(2, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_and_autocast_where_some_tiles_are_empty(dtype, autocast):
    """Every rank brings the same dtype to the all-reduce, also one without pixels."""
    labels = torch.arange(2 * 5 * 6).reshape(2, 5, 6) % 3

    def every(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return [
                F.cross_entropy(x, y),
                F.cross_entropy(x, y, reduction="sum"),
                F.nll_loss(x.log_softmax(1), y),
            ]

    x = rand(2, 3, 5, 6, dtype=dtype)
    expected = every(x, labels)
    results = run_ranks(
        7, lambda comm: every(mpi4dl.shard(x, (7, 1)), mpi4dl.shard(labels, (7, 1)))
    )
    for values in results:
        for actual, wanted in zip(values, expected, strict=True):
            assert actual.dtype == wanted.dtype
            torch.testing.assert_close(actual, wanted, rtol=1e-2, atol=1e-3)


def test_more_half_precision_pixels_than_half_precision_can_count():
    x, labels = torch.zeros(1, 2, 300, 300, dtype=torch.float16), torch.zeros(1, 300, 300).long()
    losses = run_ranks(
        2,
        lambda comm: F.cross_entropy(mpi4dl.shard(x, (2, 1)), mpi4dl.shard(labels, (2, 1))),
    )
    assert all(abs(float(loss) - 0.6931) < 1e-3 for loss in losses)


def test_a_wrong_weight_is_an_error_also_where_a_rank_has_no_pixels():
    def program(comm):
        try:
            F.cross_entropy(mpi4dl.shard(x, (7, 1)), mpi4dl.shard(labels, (7, 1)), torch.ones(4))
        except RuntimeError as error:
            return str(error)

    x, labels = rand(1, 3, 5, 6, dtype=torch.float32), torch.zeros(1, 5, 6).long()
    assert all("weight" in message for message in run_ranks(7, program))


def test_losses_that_take_numbers_for_reductions_are_refused():
    def program(comm):
        tile = mpi4dl.shard(rand(2, 3, 4, 4), (2, 2))
        with pytest.raises(mpi4dl.UnsupportedOperator, match=r"nn\.functional\.kl_div"):
            torch.kl_div(tile, tile, 1)

    run_ranks(4, program)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_target_that_is_no_class_is_an_error_on_every_rank(loss, reduction):
    target = torch.zeros(1, 8, 6, dtype=torch.long)
    target[0, 7, 5] = 3

    def program(comm):
        x = mpi4dl.shard(rand(1, 3, 8, 6), grid=(2, 2))
        loss(x, target, reduction=reduction)

    every_rank_raises(4, program, IndexError, "1 targets are neither a class")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_rank_without_pixels_takes_part_in_the_gradient_of_the_target(reduction, weighted):
    """Soft labels that are learned: all ranks exchange their gradient, or the others wait."""
    weight = torch.rand(3, dtype=torch.float64) if weighted else None

    def loss(x, target):
        return F.cross_entropy(x, target, weight, label_smoothing=0.1, reduction=reduction)

    images = rand(1, 3, 2, 5), rand(1, 3, 2, 5, seed=1).softmax(1)
    for plain in [(), (1,)]:
        assert_exact(loss, *images, grid=(3, 1), plain=plain)
