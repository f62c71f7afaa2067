"""Calls in the forms that PyTorch accepts, and errors where one process has one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl import Layout, Tile, shard
from mpi4dl.comm.communicator import Serial, use
from support.exactness import assert_exact, assert_refused, on_tiles, rand
from support.ranks import run_ranks

X = rand(2, 3, 8, 6)
WEIGHT, BIAS = rand(3, seed=1), rand(3, seed=2)
KERNEL = rand(3, 3, 3, 3, seed=3)


# ── the same call in another form ────────────────────────────────────────────────────────────────


def test_the_compiled_norms_have_their_operands_in_another_order():
    assert_exact(lambda x: torch.batch_norm(x, WEIGHT, BIAS, None, None, True, 0.1, 1e-5, True), X)
    assert_exact(
        lambda x: torch.batch_norm(x, WEIGHT, BIAS, BIAS, BIAS.abs(), False, 0.1, 1e-5, True), X
    )
    assert_exact(
        lambda x: torch.instance_norm(x, WEIGHT, BIAS, None, None, True, 0.1, 1e-5, True), X
    )


def test_softmax_takes_its_dtype_by_position_and_guesses_its_dimension():
    with pytest.warns(UserWarning, match="Implicit"):
        assert_exact(lambda x: [F.softmax(x), F.log_softmax(x)], X)
    out = on_tiles(lambda x: torch.log_softmax(x, 2, torch.float64), [X.float()], (2, 2)).outputs
    assert out[0].dtype == torch.float64


def test_dimensions_and_positions_may_be_given_one_by_one():
    assert_exact(lambda x: [x.count_nonzero(1, 2), x.count_nonzero((2, 3)), x.count_nonzero()], X)
    assert_exact(lambda x: [*x.hsplit(1, 2), *x.vsplit([1])], X)


def test_an_operand_may_be_given_by_its_name():
    assert_exact(lambda x: [torch.ones_like(input=x), torch.relu(input=x)], X)


def test_extremes_of_both_kinds_have_names():
    assert_exact(lambda x: [x.aminmax().min, x.aminmax(dim=2).max], X)


def test_similarity_of_pixels_with_one_vector_for_all():
    whole, vector = rand(2, 3, 8, 6, seed=4), rand(3, 1, 1, seed=5)
    for grid in [(2, 2), (1, 3)]:
        assert_exact(F.cosine_similarity, X, whole, grid=grid, plain=(1,))
        assert_exact(F.cosine_similarity, X, vector, grid=grid, plain=(1,))
        assert_exact(lambda v, x: F.cosine_similarity(v, x, -3), vector, X, grid=grid, plain=(0,))
    assert_exact(lambda x: F.cosine_similarity(x, x.mean((2, 3), keepdim=True)), X)
    assert_refused(lambda x: F.cosine_similarity(x, x, dim=2), X, match="split over ranks")


def test_bytes_are_masks_when_they_index():
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8)
    with pytest.warns(UserWarning, match="deprecated"):
        assert_exact(lambda x: x[:, mask], X)


def test_averages_of_whole_numbers_are_whole():
    whole = (X * 10).long()
    for pool in (lambda x: F.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, 3, 1, 1, False, False)):
        assert_exact(pool, whole)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.conv2d(x, KERNEL, stride=2, padding="same"),
        lambda x: F.conv2d(x, KERNEL, padding="full"),
        lambda x: F.conv2d(x, KERNEL, padding=-1),
        lambda x: F.conv2d(x, KERNEL, stride=0),
        lambda x: F.conv_transpose2d(x, KERNEL, padding=-1),
        lambda x: F.conv_transpose2d(x, KERNEL, stride=2, output_padding=-1),
        lambda x: F.max_pool2d(x, 3, 1, padding=-1),
        lambda x: F.max_pool2d(x, 3, 0),
        lambda x: F.avg_pool2d(x, 0),
        lambda x: F.adaptive_avg_pool2d(x, (3,)),
        lambda x: F.adaptive_max_pool1d(x, 1),
    ],
)
def test_windows_that_cannot_be_are_errors_as_in_one_process(call):
    with pytest.raises((RuntimeError, ValueError)):
        call(X)
    assert_refused(call, X, error=mpi4dl.GeometryError)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum((2, -2)),
        lambda x: x.mean((1, 1)),
        lambda x: x[:, :, :0].amax(),
        lambda x: x[:, :, :0].max(),
        lambda x: F.rms_norm(x, (2, 3)),
        lambda x: F.layer_norm(x, (8, 6), rand(6)),
        lambda x: F.group_norm(x, 3, rand(1)),
        lambda x: F.batch_norm(x, None, None, rand(1), training=True),
        lambda x: torch.linalg.vector_norm(x.long(), 2, (2, 3)),
    ],
)
def test_sizes_that_do_not_fit_are_errors_as_in_one_process(call):
    with pytest.raises((RuntimeError, IndexError)):
        call(X)
    assert_refused(call, X, error=(RuntimeError, IndexError))


def test_numbers_with_a_fraction_are_no_positions():
    assert_refused(lambda x: x[:, torch.tensor([1.0, 0.0])], X, error=IndexError)


@pytest.mark.parametrize(
    "call",
    [
        lambda tile, plain: F.batch_norm(plain, None, None, tile[0, :, :, 0], training=True),
        lambda tile, plain: F.layer_norm(plain, (8, 6), tile[0, 0]),
        lambda tile, plain: plain.index_select(1, tile[0, 0, 0].long()),
        lambda tile, plain: plain.gather(1, tile.long()),
        lambda tile, plain: F.prelu(plain, tile[0, :, 0]),
    ],
)
def test_a_plain_first_operand_beside_a_tile_is_refused(call):
    assert_refused(call, X, X, plain=(1,))


def test_a_product_with_no_tensor_is_a_type_error():
    assert_refused(lambda x: 2 @ x, X, error=TypeError, match="unsupported operand")


def test_results_cannot_be_written_to_given_memory():
    for call in (torch.mean, torch.cumsum, torch.logsumexp):
        assert_refused(lambda x, f=call: f(x, 1, out=torch.empty(1)), X, match="out=")


def test_tiles_on_different_groups_of_ranks_are_not_combined():
    def program(comm):
        ours = shard(X, grid=(1, 1))
        with use(Serial()):
            layout = Layout.grid((8, 6), (1, 1))
            theirs = Tile.from_local(X, layout)
        for meet in (torch.add, lambda a, b: torch.cat([a, b], 1), F.mse_loss):
            with pytest.raises(mpi4dl.LayoutMismatch, match="different groups"):
                meet(ours, theirs)

    run_ranks(1, program)


# ── half precision ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.rms_norm(x, (3, 8, 6)),
        lambda x: F.normalize(x, dim=(2, 3)),
        lambda x: x.var((2, 3)),
        lambda x: x.std(),
        lambda x: x.norm(),
        lambda x: torch.linalg.vector_norm(x, 3, (2, 3)),
        lambda x: x.logsumexp((2, 3)),
        lambda x: x.softmax(2),
        lambda x: x.log_softmax(-1),
        lambda x: F.avg_pool2d(x * 20, 7, 1, 3),
    ],
)
def test_half_precision_does_not_overflow_before_the_result_does(call, dtype):
    x = (X * 100 + 500).to(dtype)
    (actual,) = on_tiles(call, [x], (2, 2)).outputs
    expected, exact = call(x), call(x.double())
    assert actual.dtype == expected.dtype == dtype
    # As near to the truth as one process is, but for the last bit.
    off = (expected.double() - exact).norm() + exact.norm() * torch.finfo(dtype).eps
    assert (actual.double() - exact).norm() <= 2 * off
