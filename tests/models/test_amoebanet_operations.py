import pytest
import torch
from torch import nn

from mpi4dl.models import amoebanet_operations as operations
from mpi4dl.models.amoebanet_cells import NORMAL, REDUCTION, Cell, Widths

ALL = [
    operations.none,
    operations.avg_3x3,
    operations.max_3x3,
    operations.max_2x2,
    operations.conv_1x1,
    operations.conv_3x3,
    operations.conv_1x7_7x1,
]


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize("size", [(1, 2), (7, 8), (9, 5)])
def test_stride_two_rounds_up(operation, size):
    halved = tuple((n + 1) // 2 for n in size)
    assert operation(8, 2).eval()(torch.randn(1, 8, *size)).shape == (1, 8, *halved)


@pytest.mark.parametrize("operation", [o for o in ALL if o is not operations.max_2x2])
def test_stride_one_keeps_the_size(operation):
    assert operation(8, 1)(torch.randn(2, 8, 7, 6)).shape == (2, 8, 7, 6)


@pytest.mark.parametrize("size", [4, 5])
def test_factorized_reduction_reads_both_parities(size):
    reduction = operations.FactorizedReduction(1, 2).eval()
    for conv in (reduction.even, reduction.odd):
        nn.init.ones_(conv.weight)
    image = torch.arange(1.0, size * size + 1).reshape(1, 1, size, size)
    even, odd = (reduction(image) * (1 + reduction.norm.eps) ** 0.5)[0]

    expected_odd = torch.zeros_like(odd)
    pixels = image[0, 0, 1::2, 1::2]
    expected_odd[: pixels.shape[0], : pixels.shape[1]] = pixels
    torch.testing.assert_close(even, image[0, 0, ::2, ::2])
    torch.testing.assert_close(odd, expected_odd)


def test_average_does_not_count_the_padding():
    ones = torch.ones(1, 1, 3, 3)
    assert torch.equal(operations.avg_3x3(1, 1)(ones), ones)


def test_strides_of_the_long_convolutions():
    convs = [m for m in operations.conv_1x7_7x1(8, 2).modules() if isinstance(m, nn.Conv2d)]
    assert [(c.kernel_size, c.stride, c.out_channels) for c in convs] == [
        ((1, 1), (1, 1), 2),
        ((1, 7), (1, 2), 2),
        ((7, 1), (2, 1), 2),
        ((1, 1), (1, 1), 8),
    ]


@pytest.mark.parametrize("recipe", [NORMAL, REDUCTION])
def test_every_state_is_read(recipe):
    read = {state for pair in recipe.pairs for state, _ in pair}
    assert read | set(recipe.concatenated) == set(range(2 + len(recipe.pairs)))


def test_cell_reads_a_lone_tensor_as_both_inputs():
    x = torch.randn(2, 8, 5, 5)
    cell = Cell(NORMAL, Widths(8, 8), 8).eval()
    output, skip = cell(x)
    assert skip is x
    assert torch.equal(output, cell((x, x))[0])
    assert output.shape == (2, 32, 5, 5)


def test_preparation_of_the_skip():
    def kind(widths: Widths) -> type[nn.Module]:
        return type(Cell(NORMAL, widths, 8).prepare_skip)

    assert kind(Widths(8, 8)) is nn.Identity
    assert kind(Widths(8, 4)) is nn.Sequential
    assert kind(Widths(8, 8, reduced=True)) is operations.FactorizedReduction
