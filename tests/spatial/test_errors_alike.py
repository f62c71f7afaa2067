"""What PyTorch refuses for the sake of one rank's pixels, or of all but an empty rank's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from support.exactness import assert_exact, assert_refused, rand

PYTORCHS = (RuntimeError, ValueError, NotImplementedError)


def one_pixel(value, others):
    """An image that differs from all others in its last pixel, which the last rank has."""
    x = torch.full((1, 3, 9, 11), others)
    x[0, 1, 8, 10] = value
    return x


def refused_as_in_one_process(function, *inputs, grid, says):
    with pytest.raises(PYTORCHS, match=says):
        function(*inputs)
    assert_refused(function, *inputs, grid=grid, error=PYTORCHS, match=says)


ONE_RANKS = {
    "a probability above one": (
        lambda x: F.binary_cross_entropy(x, x.detach() * 0),
        one_pixel(1.5, 0.5),
        "between 0 and 1",
    ),
    "a probability that is no number": (
        lambda x: F.binary_cross_entropy(x, x.detach() * 0, reduction="none"),
        one_pixel(float("nan"), 0.5),
        "between 0 and 1",
    ),
    "a negative variance": (
        lambda x: F.gaussian_nll_loss(x, 2 * x, x),
        one_pixel(-1.0, 2.0),
        "negative",
    ),
    "a label that is no class": (lambda x: F.one_hot(x, 4), one_pixel(7, 1), "smaller"),
    "an index out of bounds": (lambda x: x.gather(1, x), one_pixel(3, 1), "out of bounds"),
    "a draw of what is no probability": (torch.bernoulli, one_pixel(2.0, 0.5), "p_in"),
    "a zero to divide by": (lambda x: 7 // x, one_pixel(0, 1), "ZeroDivision"),
    "a zero to divide by, rounded": (
        lambda x: x.div(x, rounding_mode="floor"),
        one_pixel(0, 1),
        "ZeroDivision",
    ),
    "a zero to divide by, named": (
        lambda x: torch.floor_divide(input=x, other=x),
        one_pixel(0, 1),
        "ZeroDivision",
    ),
    "a zero to divide by in place": (lambda x: (x * 1).remainder_(x), one_pixel(0, 1), "Zero"),
}


@pytest.mark.parametrize("grid", [(2, 2), (10, 1), (1, 3)])
@pytest.mark.parametrize("name", ONE_RANKS)
def test_an_error_over_one_pixel_is_one_on_every_rank(name, grid):
    function, image, says = ONE_RANKS[name]
    refused_as_in_one_process(function, image, grid=grid, says=says)


def test_functions_that_look_at_values_are_exact_where_nothing_is_wrong():
    x, steps = rand(1, 3, 9, 11), torch.arange(297).view(1, 3, 9, 11)
    for grid in [(2, 2), (10, 1)]:
        assert_exact(
            lambda x: F.gaussian_nll_loss(x.sin(), x, x.abs() + 0.1, full=True), x, grid=grid
        )
        assert_exact(lambda x: F.binary_cross_entropy(x.sigmoid(), x.sin().abs()), x, grid=grid)
        assert_exact(
            lambda n: (n // 7, n % 7, n.fmod(5), n.div(4, rounding_mode="trunc"), 99 // (n + 1)),
            steps,
            grid=grid,
        )
        assert_exact(lambda n: (n * 1).floor_divide_(3).remainder_(4), steps, grid=grid)


WITHOUT_PIXELS = {
    "batch_norm with other statistics": (
        lambda x: F.batch_norm(x, torch.zeros(2), torch.ones(3)),
        torch.float32,
    ),
    "batch_norm without statistics": (lambda x: F.batch_norm(x, None, None), torch.float32),
    "instance_norm without statistics": (
        lambda x: F.instance_norm(x, use_input_stats=False),
        torch.float32,
    ),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), torch.int64),
    "group_norm": (lambda x: F.group_norm(x, 3), torch.int64),
    "batch_norm of complex numbers": (
        lambda x: F.batch_norm(x, None, None, training=True),
        torch.complex64,
    ),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[2:]), torch.int64),
    "layer_norm of columns": (lambda x: F.layer_norm(x, x.shape[3:]), torch.int64),
    "softmax over channels": (lambda x: x.softmax(1), torch.int64),
    "log_softmax over rows": (lambda x: x.log_softmax(2), torch.int64),
    "a product of two types": (
        lambda x: torch.einsum("bchw,dc->bdhw", x, torch.ones(2, 3).double()),
        torch.float32,
    ),
    "a product of two sizes": (lambda x: x.movedim(1, -1) @ torch.ones(4, 2), torch.float32),
    "attention to other features": (
        lambda x: F.scaled_dot_product_attention(x.flatten(2).mT, *[torch.ones(1, 2, 5)] * 2),
        torch.float32,
    ),
}


@pytest.mark.parametrize("grid", [(2, 2), (10, 1), (1, 12)])
@pytest.mark.parametrize("name", WITHOUT_PIXELS)
def test_a_rank_without_pixels_notices_what_the_others_notice(name, grid):
    function, dtype = WITHOUT_PIXELS[name]
    image = rand(1, 3, 9, 11).to(dtype)
    with pytest.raises(PYTORCHS):
        function(image)
    assert_refused(function, image, grid=grid, error=PYTORCHS)


@pytest.mark.parametrize(
    "loss", [F.binary_cross_entropy, F.binary_cross_entropy_with_logits], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("sizes", [(9, 1), (1, 11), (1, 1)])
def test_a_target_that_only_one_rank_would_take(loss, sizes):
    """Where a tile has one row or column, its part and that of the target have one shape."""
    image, target = rand(2, 3, 9, 11).sigmoid(), rand(2, 3, *sizes).sigmoid()
    for grid in [(9, 1), (1, 11), (2, 2)]:
        assert_refused(
            lambda x: loss(x, target), image, grid=grid, error=ValueError, match=r"3, 9, 11"
        )


SIZES = {
    "convolution": lambda x: F.conv2d(x, rand(4, 5, 3, 3)),
    "convolution of groups": lambda x: F.conv2d(x, rand(4, 5, 3, 3), groups=2),
    "transposed convolution": lambda x: F.conv_transpose2d(x, rand(4, 5, 3, 3)),
    "product": lambda x: torch.einsum("bchw,dc->bdhw", x, rand(4, 5)),
    "sum": lambda x: x + rand(9, 10),
}


@pytest.mark.parametrize("grid", [(2, 2), (10, 1)])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_do_not_fit_are_those_of_the_whole_image(name, grid):
    sizes = r"\(9, 10\)" if name == "sum" else r"\(2, 3, 9, 11\)"
    error = mpi4dl.LayoutMismatch if name == "sum" else RuntimeError
    assert_refused(SIZES[name], rand(2, 3, 9, 11), grid=grid, error=error, match=sizes)
