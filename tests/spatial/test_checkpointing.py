"""Functions that run again on what a checkpoint kept, under other hooks on saved tensors too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpi4dl import FusedHalo
from support.exactness import assert_exact, rand


class Saved(nn.Module):
    """A layer between two others, in one checkpoint within another: `inner` to `outer`."""

    def __init__(self, layer: nn.Module, *reentrant: bool) -> None:
        super().__init__()
        self.before, self.layer, self.after = nn.Conv2d(2, 2, 3), layer, nn.Conv2d(2, 2, 3)
        self.reentrant = reentrant

    def forward(self, x):
        function = self.layer
        for reentrant in self.reentrant:
            function = self.again(function, reentrant)
        return self.after(function(self.before(x)))

    @staticmethod
    def again(function, reentrant):
        return lambda x: checkpoint(function, x, use_reentrant=reentrant)


class Masked(nn.Module):
    def forward(self, x):
        y = x * 1
        y[x > 0] = 0.1
        return y


LAYERS = {
    "convolution": lambda: nn.Conv2d(2, 2, 3, padding=1),
    "even": lambda: nn.Conv2d(2, 2, 2),
    "batch norm": lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(2)),
    "group norm": lambda: nn.GroupNorm(1, 2),
    "max": lambda: nn.MaxPool2d(3, 1, 1),
    "average": lambda: nn.AvgPool2d(3, 2),
    "resized": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "reflected": lambda: nn.ReflectionPad2d(2),
    "masked": Masked,
    "nothing": nn.Identity,
}
NESTED = [(False,), (True,), (False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("reentrant", NESTED, ids=str)
def test_checkpoints_within_checkpoints(layer, reentrant):
    assert_exact(Saved(LAYERS[layer](), *reentrant), rand(2, 2, 13, 12), grid=(2, 1))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("reentrant", NESTED, ids=str)
def test_checkpoints_within_fused_halos(layer, reentrant):
    module = FusedHalo(Saved(LAYERS[layer](), *reentrant))
    assert_exact(module, rand(2, 2, 21, 24), grid=(2, 2))


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_hooks_on_saved_tensors(reentrant):
    class OnCpu(Saved):
        def forward(self, x):
            with torch.autograd.graph.save_on_cpu():
                return super().forward(x)

    for module in (OnCpu(nn.Conv2d(2, 2, 2), reentrant), OnCpu(nn.BatchNorm2d(2), reentrant)):
        assert_exact(module, rand(2, 2, 13, 12))
        assert_exact(FusedHalo(module), rand(2, 2, 21, 24))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("reentrant", [True, False])
def test_running_statistics_move_as_often_as_in_one_process(norm, reentrant):
    """In the second run too, which may end as soon as the last tensor is saved."""
    layer = norm(2, track_running_stats=True)
    assert_exact(Saved(layer, reentrant), rand(2, 2, 13, 12), grid=(2, 2))
    assert_exact(Saved(nn.Sequential(layer, nn.ReLU()), reentrant), rand(2, 2, 13, 12))


@pytest.mark.parametrize("fused", [True, False])
def test_views_and_writes_inside_do_the_same_in_both_runs(fused):
    class Writes(nn.Module):
        def forward(self, x):
            y = x.detach() + x.to(x.dtype).contiguous()
            y += 1
            return y.relu_()

    module = nn.Sequential(nn.Sequential(Saved(Writes(), False)), Writes())
    assert_exact(FusedHalo(module) if fused else module, rand(2, 2, 21, 24))

    class AtOnce(nn.Module):  # on the tile that enters the group itself
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(2, 2, 3)

        def forward(self, x):
            return self.last(checkpoint(Writes(), x, use_reentrant=False))

    assert_exact(FusedHalo(AtOnce()) if fused else AtOnce(), rand(2, 2, 21, 24))


def test_what_a_reentrant_checkpoint_returns_can_be_written_to():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 2, 2, padding=1)

        def both(self, x):
            y = self.layer(x)
            return y, F.pad(y, (1, 1))

        def forward(self, x):
            one, two = checkpoint(self.both, x, use_reentrant=True)
            return F.silu(one, inplace=True), two.mul_(2)

    for grid in [(1, 1), (2, 2), (3, 1)]:
        assert_exact(Pair(), rand(2, 2, 13, 12), grid=grid)
