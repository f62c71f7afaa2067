"""What every model promises: plain sequences that can be cut anywhere."""

import copy

import pytest
import torch
from torch import Tensor, nn

from mpi4dl.models import MODELS, build

IMAGE = (2, 3, 37, 51)
VOLUME = (2, 1, 9, 11, 13)
CASES = {
    "resnet_v1": ("resnet_v1", {"depth": 14}, IMAGE),
    "resnet_v2": ("resnet_v2", {"depth": 20}, IMAGE),
    "resnet18": ("resnet18", {"num_classes": 10}, IMAGE),
    "resnet50": ("resnet50", {"num_classes": 10}, IMAGE),
    "amoebanet_d": ("amoebanet_d", {"num_layers": 6, "num_filters": 16}, IMAGE),
    "unet": ("unet", {"base": 4, "depth": 3}, IMAGE),
    "unet, interpolating": ("unet", {"base": 4, "depth": 2, "upsampling": "interpolate"}, IMAGE),
    "unet 3d": (
        "unet",
        {"base": 4, "depth": 2, "dims": 3, "in_channels": 1, "norm": "instance"},
        VOLUME,
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Sequential, Tensor]:
    name, options, shape = CASES[request.param]
    torch.manual_seed(0)
    return build(name, **options), torch.randn(shape)


def tensors(flow: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (flow,) if isinstance(flow, Tensor) else flow


def test_every_model_is_tried_or_is_a_larger_sibling():
    assert set(MODELS) - {name for name, _, _ in CASES.values()} == {"resnet101"}


def test_is_a_plain_sequence(case):
    model, _ = case
    assert type(model) is nn.Sequential
    assert type(model[1:3]) is nn.Sequential


def test_cut_anywhere(case):
    model, x = case
    model.eval()
    with torch.no_grad():
        whole = model(x)
        for k in range(len(model) + 1):
            assert torch.equal(model[k:](model[:k](x)), whole), f"cut before layer {k}"


def test_slices_keep_the_parameter_names(case):
    model, _ = case
    half = len(model) // 2
    pieces = model[:half].state_dict() | model[half:].state_dict()
    assert pieces.keys() == model.state_dict().keys()


def test_training_in_pieces_gives_the_gradients_of_the_whole(case):
    model, x = case
    pieces = copy.deepcopy(model)
    model(x).square().mean().backward()

    flow, inputs, outputs = x, [], []
    for layer in pieces:
        inputs.append(tuple(t.detach().requires_grad_() for t in tensors(flow)))
        flow = layer(inputs[-1] if len(inputs[-1]) > 1 else inputs[-1][0])
        outputs.append(tensors(flow))
    assert isinstance(flow, Tensor)
    outputs[-1] = (flow.square().mean(),)
    gradients = (torch.ones(()),)
    for entering, leaving in zip(reversed(inputs), reversed(outputs), strict=True):
        used = [(t, g) for t, g in zip(leaving, gradients, strict=True) if g is not None]
        torch.autograd.backward([t for t, _ in used], [g for _, g in used])
        gradients = tuple(t.grad for t in entering)

    for (name, whole), piece in zip(model.named_parameters(), pieces.parameters(), strict=True):
        assert whole.grad is not None, name
        torch.testing.assert_close(piece.grad, whole.grad, msg=name)


def test_layers_leave_their_input_as_it_was(case):
    model, flow = case
    for name, layer in model.named_children():
        before = [t.clone() for t in tensors(flow)]
        out = layer(flow)
        for old, now in zip(before, tensors(flow), strict=True):
            assert torch.equal(old, now), name
        flow = out


def test_every_parameter_gets_a_gradient(case):
    model, x = case
    model(x).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    # A bias right before a normalization has no effect; every weight must have one.
    idle = [name for name, p in model.named_parameters() if p.dim() > 1 and not p.grad.any()]
    assert idle == []
