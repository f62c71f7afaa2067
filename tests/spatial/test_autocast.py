"""Under autocast every result has the dtype that one process gives it, on every rank."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from mpi4dl.spatial import autocast
from support.exactness import on_tiles, rand, rounding_errors, single_process
from support.ranks import run_ranks

FUNCTIONS = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(2),
    "mean": lambda x: x.mean((2, 3)),
    "softmax over columns": lambda x: x.softmax(3),
    "log_softmax over channels": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp((2, 3)),
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, (2, 3)),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "bicubic": lambda x: F.interpolate(x, size=(11, 7), mode="bicubic"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 2),
    "many adaptive averages": lambda x: F.adaptive_avg_pool2d(x, 5),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 2),
    "local_response_norm": lambda x: F.local_response_norm(x, 3),
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (0, 0, 2, 1), "replicate"),
    "circular": lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"),
    "linear over all pixels": lambda x: F.linear(
        x.flatten(1), torch.ones(3, 192, dtype=x.dtype, device=x.device), x.new_ones(3)
    ),
    "addmm": lambda x: torch.addmm(
        x.new_ones(3), x.movedim(1, -1).reshape(-1, 4), x.new_ones(4, 3), beta=0.5
    ),
}


def _device() -> str:
    return torch.get_default_device().type


@pytest.mark.parametrize("grid", [(2, 2), (9, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dtypes_are_those_of_one_process(name, dtype, grid):
    x = rand(2, 4, 8, 6, dtype=dtype)

    def value(x):
        with torch.autocast(_device(), torch.bfloat16):
            y = FUNCTIONS[name](x)
        return y.full_tensor() if isinstance(y, mpi4dl.Tile) else y

    expected = value(x)
    for actual in run_ranks(grid[0] * grid[1], lambda comm: value(mpi4dl.shard(x, grid))):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("how", ["nearest", "reflect", "replicate"])
def test_padding_where_some_tiles_are_empty(how):
    """PyTorch pads in float32 under autocast on CPUs, which a rank without pixels must know."""
    x = rand(1, 2, 5, 6, dtype=torch.bfloat16)

    def value(comm):
        tile = mpi4dl.shard(x, (7, 1))
        with torch.autocast(_device(), torch.bfloat16):
            if how == "nearest":
                return F.interpolate(tile, scale_factor=2).full_tensor()
            return F.pad(tile, (1, 2, 1, 1), mode=how).full_tensor()

    results = run_ranks(7, value)
    assert {r.dtype for r in results} == {results[0].dtype}


def test_where_autocast_sums_in_float32_nothing_overflows(monkeypatch):
    """On GPUs it does; here PyTorch is said to have answered so."""
    monkeypatch.setattr(autocast, "_dtype_of", lambda *args: torch.float32)
    x = torch.ones(1, 2, 300, 300, dtype=torch.float16)

    def total(comm):
        with torch.autocast(_device(), torch.bfloat16):
            return mpi4dl.shard(x, (2, 1)).sum()

    assert all(t.dtype == torch.float32 and t == 180_000 for t in run_ranks(2, total))


class Autocast(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        with torch.autocast(_device(), torch.bfloat16, enabled=x.dtype == torch.float32):
            return self.net(x)


NETS = {
    "segmenter": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    ),
    "classifier": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2),
        nn.GELU(),
        nn.AvgPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ),
}


@pytest.mark.parametrize("grid", [(2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_as_good_as_those_of_one_process(name, grid):
    """No network here has kinks, where a rounded number may come to lie on the other side."""
    net, x = Autocast(NETS[name]()), rand(2, 3, 18, 14, dtype=torch.float32)
    exact = single_process(copy.deepcopy(net).double(), [x.double()])
    one_process, tiles = single_process(net, [x]), on_tiles(net, [x], grid)
    assert tiles.outputs[0].dtype == one_process.outputs[0].dtype == torch.bfloat16
    expected = rounding_errors(one_process, exact)
    rounding, layers = 2**-8, len(net.net)
    for what, error in rounding_errors(tiles, exact).items():
        assert error <= 2 * expected[what] + rounding, what
    for what, difference in rounding_errors(tiles, one_process).items():
        assert difference <= layers * rounding, what
