"""Reductions over image dimensions are those of the whole image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from support.exactness import assert_exact, assert_refused, on_tiles, rand

GRIDS = [(1, 2), (3, 1), (2, 2), (2, 3)]
DIMS = [None, (2, 3), (-1,), (2,), 1, (0, 2, 3), (1, 2), (0, 1)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_sums_means_variances_extremes(dim, keepdim, grid):
    x = rand(2, 3, 7, 9)

    def every(x):
        return [
            x.sum(dim, keepdim),
            x.mean(dim, keepdim),
            x.amax(() if dim is None else dim, keepdim),
            x.amin(() if dim is None else dim, keepdim=keepdim),
            torch.var(x, dim, keepdim=keepdim),
            torch.std(x, dim, correction=0, keepdim=keepdim),
            x.var(dim=dim, unbiased=False, keepdim=keepdim),
            torch.linalg.vector_norm(x, 2, dim, keepdim),
            torch.linalg.vector_norm(x, 1, dim, keepdim),
            torch.linalg.vector_norm(x, 3, dim, keepdim),
            torch.linalg.vector_norm(x, float("inf"), dim, keepdim),
        ]

    assert_exact(every, x, grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_reductions_without_a_dimension(grid):
    def every(x):
        return [
            x.sum(),
            x.mean(),
            x.max(),
            torch.min(x),
            x.std(),
            x.norm(),
            (x > 0).sum(),
            (x > 0.5).any(),
            (x > -9).all(),
            torch.count_nonzero(x > 1),
            *torch.var_mean(x, (2, 3)),
            *torch.std_mean(x, 1),
            *torch.aminmax(x),
        ]

    assert_exact(every, rand(2, 3, 7, 9), grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dim", [1, 2, 3, -1, 0])
def test_softmax_and_its_relatives(dim, grid):
    def every(x):
        return [
            x.softmax(dim),
            F.log_softmax(x, dim=dim),
            F.softmin(x, dim=dim),
            torch.logsumexp(x, dim),
            torch.logsumexp(x, (dim,), keepdim=True),
            F.normalize(x, dim=dim),
        ]

    assert_exact(every, rand(2, 3, 7, 5), grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_along_channels(grid):
    def every(x):
        best, where = x.max(1)
        return [
            x.argmax(1),
            x.argmax(dim=1, keepdim=True),
            best,
            where,
            x.max(1, keepdim=True)[0],
            x.cumsum(1),
            x.sort(1)[0],
            x.topk(2, 1)[0],
            x.median(1)[0],
            x.min(dim=1).values,
            x.prod(1),
        ]

    assert_exact(every, rand(2, 4, 7, 5), grid=grid)


def test_global_response_normalisation():
    def grn(x):
        size = x.norm(p=2, dim=(2, 3), keepdim=True)
        return x * (size / (size.mean(1, keepdim=True) + 1e-6)) + x

    assert_exact(grn, rand(2, 4, 7, 5), grid=(2, 2))


def test_dice_written_with_plain_sums():
    def dice(logits, target):
        p = torch.sigmoid(logits)
        both = (p * target).sum((2, 3))
        return (1 - (2 * both + 1) / (p.sum((2, 3)) + target.sum((2, 3)) + 1)).mean()

    target = (rand(2, 1, 9, 7, seed=1) > 0).double()
    assert_exact(dice, rand(2, 1, 9, 7), target, grid=(2, 2))


def test_norm_of_zeros_has_gradient_zero_and_not_nan():
    zeros = torch.zeros(1, 2, 5, 6, dtype=torch.float64)
    assert_exact(lambda x: (x.norm(dim=(2, 3)), x.norm(p=3, dim=(2, 3))), zeros, grid=(2, 2))


def test_empty_tiles_take_part():
    def every(x):
        return [x.sum((2, 3)), x.mean(), x.amax((2, 3)), x.var((2, 3)), x.norm(), x.max(1)[0]]

    assert_exact(every, rand(2, 3, 2, 3), grid=(4, 2))


def test_three_dimensions_and_the_batch():
    def every(x):
        return [x.mean((2, 3, 4)), x.sum(2), x.amax((3, 4)), x.std((0, 2, 3, 4))]

    assert_exact(every, rand(2, 3, 4, 5, 6), grid=(2, 1, 2))
    assert_exact(every, rand(4, 3, 4, 5, 6), grid=(2, 2), dims=(0, 3))


def test_half_precision_sums_round_once():
    x = rand(1, 2, 64, 64).to(torch.bfloat16)
    want = (x.sum((2, 3)), x.mean((2, 3)))
    got = on_tiles(lambda x: (x.sum((2, 3)), x.mean((2, 3))), [x], (4, 2)).outputs
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.bfloat16
        assert torch.allclose(a.float(), b.float(), rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sort(2),
        lambda x: x.cumsum(-1),
        lambda x: x.argmax(),
        lambda x: x.median(),
        lambda x: x.topk(2),
        lambda x: torch.fft.fft2(x),
        lambda x: torch.fft.rfft(x, dim=1),
        lambda x: torch.linalg.norm(x, "nuc", dim=(2, 3)),
        lambda x: torch.cdist(x, x),
        lambda x: F.grid_sample(x, torch.zeros(1, 4, 4, 2, dtype=torch.float64)),
    ],
)
def test_what_needs_all_pixels_is_refused_by_name(call):
    assert_refused(call, rand(1, 2, 8, 8), match=r"full_tensor|vector norm")


def test_the_smallest_of_large_integers_over_some_of_the_cut_dimensions():
    x = (rand(2, 3, 7, 9).abs() * 100).long()
    assert_exact(lambda x: [x.amin(2), x.amax(-1), x.amin((0, 3)), x.sum(2)], x)


def test_complex_numbers_have_real_variances_and_norms():
    x = torch.complex(rand(2, 3, 7, 9), rand(2, 3, 7, 9, seed=1))
    assert_exact(
        lambda x: [
            torch.view_as_real(r) if r.is_complex() else r
            for r in (x.mean().detach(), x.var((2, 3)), x.std(), torch.linalg.vector_norm(x))
        ],
        x,
    )


@pytest.mark.parametrize("grid", [(1, 3), (2, 2), (1, 1)])
def test_the_special_functions_are_the_ordinary_ones(grid):
    def every(x):
        return [f(x, dim) for f in SPECIAL for dim in (1, 3)]

    assert_exact(every, rand(2, 3, 7, 5), grid=grid)


SPECIAL = (torch.special.softmax, torch.special.log_softmax, torch.special.logsumexp)


@pytest.mark.parametrize("grid", [(1, 3), (1, 1)])
def test_along_a_dimension_of_the_layout_that_is_not_cut(grid):
    def every(x):
        return [
            x.max(2, keepdim=True)[0],
            x.argmax(2, keepdim=True),
            x.max(2)[0],
            x.topk(2, 2)[0],
            x.diff(dim=2),
            x.prod(2, keepdim=True),
            x.kthvalue(3, 2, True)[0],
        ]

    assert_exact(every, rand(2, 3, 7, 5), grid=grid)
    assert_exact(lambda x: x.max(1)[0], rand(2, 3), grid=(1,), dims=(1,))


def test_arguments_may_have_their_numpy_names():
    def every(x):
        return [
            x.sum(axis=1),
            x.mean(axis=(2, 3), keepdims=True),
            x.max(axis=1)[0],
            torch.cat([x, x], axis=2),
            torch.argmax(x, axis=1, keepdims=True),
        ]

    assert_exact(every, rand(2, 3, 7, 5))


def test_norms_of_matrices_are_answered_where_they_are_vector_norms():
    assert_exact(
        lambda x: [torch.linalg.norm(x), torch.linalg.norm(x, "fro"), torch.norm(x, 3)], rand(7, 5)
    )
    assert_exact(lambda x: torch.linalg.norm(x, dim=(2, 3)), rand(2, 3, 7, 5))
    for order in (1, 2, float("inf"), "nuc"):
        assert_refused(lambda x, p=order: torch.linalg.norm(x, p), rand(7, 5), match="matrix norm")


def test_any_and_all_of_bytes_are_bytes():
    assert_exact(lambda x: [x.any(2), x.all(1), x.any()], (rand(2, 3, 7, 5) > 1).byte())


def test_a_flattened_dimension_that_stays_cut_is_refused():
    for reduce in (torch.amax, torch.sum):
        assert_refused(
            lambda x, f=reduce: f(x.flatten(2), 0),
            rand(2, 3, 4, 4),
            grid=(2, 2, 2),
            dims=(0, 2, 3),
            match="Reduce before flattening",
        )
