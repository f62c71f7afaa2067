"""Output sizes are PyTorch's own, asked on the meta device, where nothing is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from mpi4dl.errors import GeometryError
from mpi4dl.geometry import check_output, conv_size, pool_size, transposed_size

sizes = st.integers(1, 30)
kernels = st.integers(1, 7)
strides = st.integers(1, 5)
paddings = st.integers(0, 6)
dilations = st.integers(1, 4)

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def assert_same_size(theirs: Callable[[], Tensor], ours: list[int], n: list[int]) -> None:
    """PyTorch's output has our size, or PyTorch raises and so do we."""
    try:
        expected = list(theirs().shape[2:])
    except RuntimeError:
        with pytest.raises(GeometryError, match="outputs: the kernel is larger"):
            check_output("the operator", n, ours)
    else:
        assert ours == expected
        check_output("the operator", n, ours)


@given(sizes, kernels, strides, paddings, dilations)
def test_convolutions(n, kernel, stride, padding, dilation):
    assert_same_size(
        lambda: F.conv1d(meta(1, 1, n), meta(1, 1, kernel), None, stride, padding, dilation),
        [conv_size(n, kernel, stride, padding, dilation)],
        [n],
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@given(sizes, kernels, dilations)
def test_convolutions_that_keep_the_size(n, kernel, dilation):
    reach = dilation * (kernel - 1)
    expected = F.conv1d(meta(1, 1, n), meta(1, 1, kernel), padding="same", dilation=dilation)
    around = (reach // 2, reach - reach // 2)
    assert conv_size(n, kernel, 1, around, dilation) == expected.shape[2] == n


@given(sizes, kernels, strides, paddings, paddings, dilations)
def test_convolutions_padded_differently_before_and_after(
    n, kernel, stride, before, after, dilation
):
    padded = meta(1, 1, n + before + after)
    assert_same_size(
        lambda: F.conv1d(padded, meta(1, 1, kernel), None, stride, 0, dilation),
        [conv_size(n, kernel, stride, (before, after), dilation)],
        [n],
    )


@given(sizes, kernels, strides, st.data())
def test_pools(n, kernel, stride, data):
    dilation, ceil_mode = data.draw(dilations), data.draw(st.booleans())
    padding = data.draw(st.integers(0, kernel // 2))  # more is refused by PyTorch
    assert_same_size(
        lambda: F.max_pool1d(meta(1, 1, n), kernel, stride, padding, dilation, ceil_mode),
        [pool_size(n, kernel, stride, padding, dilation, ceil_mode)],
        [n],
    )
    assert_same_size(
        lambda: F.avg_pool2d(meta(1, 1, n, n), kernel, stride, padding, ceil_mode),
        [pool_size(n, kernel, stride, padding, 1, ceil_mode)] * 2,
        [n, n],
    )


@given(sizes, kernels, strides, paddings, dilations, st.data())
def test_transposed_convolutions(n, kernel, stride, padding, dilation, data):
    extra = data.draw(st.integers(0, max(stride, dilation) - 1))
    assert_same_size(
        lambda: F.conv_transpose1d(
            meta(1, 1, n), meta(1, 1, kernel), None, stride, padding, extra, 1, dilation
        ),
        [transposed_size(n, kernel, stride, padding, dilation, extra)],
        [n],
    )


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_axis_has_its_own_options(axes):
    n, kernel, stride = [23, 17, 9][:axes], [5, 3, 2][:axes], [3, 2, 1][:axes]
    padding, dilation = [4, 1, 0][:axes], [2, 1, 3][:axes]
    x, weight = meta(1, 1, *n), meta(1, 1, *kernel)
    rows = list(zip(n, kernel, stride, padding, dilation, strict=True))
    out = CONVOLUTIONS[axes](x, weight, None, stride, padding, dilation)
    assert list(out.shape[2:]) == [conv_size(*row) for row in rows]
    out = TRANSPOSED[axes](x, weight, None, stride, padding, 0, 1, dilation)
    assert list(out.shape[2:]) == [transposed_size(*row, 0) for row in rows]


def test_the_error_names_the_operator_and_the_sizes():
    message = r"conv2d on an image of \(5, 9\) would leave \(-1, 3\) outputs"
    with pytest.raises(GeometryError, match=message):
        check_output("conv2d", [5, 9], [-1, 3])
