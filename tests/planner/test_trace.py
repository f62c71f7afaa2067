"""What a dry run says is what a real run keeps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mpi4dl import Plan, Trainer
from mpi4dl.models import amoebanet_d, resnet18
from mpi4dl.planner.cluster import Cluster
from mpi4dl.planner.device import DEVICES
from mpi4dl.planner.prediction import Setting, predicted
from mpi4dl.planner.profile import Profile
from mpi4dl.planner.recorder import Convolution, Operator, Record, Recorder, no_workspace
from mpi4dl.planner.workspace import cpu_workspace

SIZE = 64


def network() -> nn.Sequential:
    def block(inner: int, outer: int, stride: int) -> nn.Sequential:
        conv = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU(inplace=True))

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return nn.Sequential(block(3, 8, 1), block(8, 8, 1), block(8, 16, 2), head)


def saved_by(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the distinct storages that autograd keeps, without parameters and the input."""
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = F.cross_entropy(model(x), torch.zeros(x.shape[0], dtype=torch.int64))
    assert loss.requires_grad
    outside = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers(), x]}
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in outside)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("make", [network, resnet18, lambda: amoebanet_d(3, 16, 5)])
def test_what_is_kept_is_what_autograd_saves(make, samples):
    model = make()
    profile = Profile(model, (3, SIZE, SIZE), workspace=no_workspace)
    (costs,) = profile.stages(profile.balanced(Plan()), samples)
    real = saved_by(model, torch.rand(samples, 3, SIZE, SIZE))
    # The dry run also holds what was kept without being saved by name: a few numbers of the loss.
    assert costs.kept == pytest.approx(real, rel=2e-3, abs=256)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("again", [False, True])
def test_the_peak_is_that_of_a_real_step(parts, again):
    torch.manual_seed(0)
    model = network()
    plan = Plan(parts=parts, schedule="gpipe", checkpoint_activations=again)
    profile = Profile(model, (3, SIZE, SIZE), workspace=no_workspace)
    setting = Setting(2 * parts, DEVICES["a100-80gb"], Cluster())
    expected = predicted(profile, profile.balanced(plan), setting).usage[0]
    trainer = Trainer(model, plan, loss=F.cross_entropy)
    images, labels = torch.rand(2 * parts, 3, SIZE, SIZE), torch.zeros(2 * parts, dtype=torch.int64)
    trainer.step(images, labels)  # learns which layers write to their input
    recorder = Recorder()
    with recorder:
        trainer.step(images, labels)
    live = peak = 0
    for _, size in recorder.record.events:
        live += size
        peak = max(peak, live)
    given = images.untyped_storage().nbytes()  # its parts are views here, and are read elsewhere
    assert expected.activations + expected.gradients == pytest.approx(peak + given, rel=0.03)


def test_layers_by_themselves_are_the_layers_together():
    whole = Profile(nn.Sequential(nn.Sequential(*network())), (3, SIZE, SIZE))
    apart = Profile(network(), (3, SIZE, SIZE))
    (one,) = whole.stages(whole.balanced(Plan()), 2)
    (many,) = apart.stages(apart.balanced(Plan()), 2)
    assert many.kept == one.kept
    assert many.forward_peak == one.forward_peak
    assert many.operators(None) == one.operators(None)
    assert many.gradients == one.gradients


def test_tiles_share_what_an_image_needs():
    profile = Profile(network(), (3, 256, 256))
    (alone,) = profile.stages(profile.balanced(Plan()), 1)
    (tile,) = profile.stages(profile.balanced(Plan(num_spatial_parts=4)), 1)
    assert 0.25 < tile.kept / alone.kept < 0.28
    kinds = {kind for kind, _ in tile.talks(None)}
    assert kinds == {"exchange", "reduce"}
    assert not alone.talks(None)


def test_layers_that_compute_alike_are_traced_once():
    layers = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(6)]
    profile = Profile(nn.Sequential(*layers), (3, SIZE, SIZE), loss=False)
    profile.stages(profile.balanced(Plan()), 1)
    assert len(profile._traces) == 2  # the first gets images, which want no gradient


def test_onednn_copies_what_it_convolves_in_blocks():
    shapes = (1, 24, 32, 32), (16, 24, 3, 3)
    c = Convolution(*shapes, (1, 1), (1, 1), (1, 1), 1, False, (True, True, False), 1024)
    blocked = 4 * 1024
    assert cpu_workspace(Operator("convolution", 0, 0, c)) == (blocked * (32 + 16),)
    backward = Operator("convolution_backward", 0, 0, c)
    assert cpu_workspace(backward) == (blocked * (32 + 16), blocked * (32 + 16))
    assert cpu_workspace(Operator("relu", 0, 0)) == ()


def test_a_recorder_forgets_what_is_freed():
    recorder = Recorder()
    with recorder:
        x = torch.empty(256, device="meta")
        y = x + 1
        z = y.view(16, 16)
        del y
        recorder.record, before = Record(), recorder.record
        del z
    assert [size for _, size in before.events] == [1024, 1024]
    assert [size for _, size in recorder.record.events] == [-1024]
