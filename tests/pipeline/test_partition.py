"""Models in stages: the same layers, the same names, the same numbers."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpi4dl import Plan, PlanError
from mpi4dl.models import amoebanet_d, resnet_v1, unet
from mpi4dl.pipeline import layers_of, partition
from support.exactness import assert_exact, rand


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class PlainUNet(nn.Module):
    """As people write it: skips are local variables of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = block(3, 4), block(4, 8)
        self.middle = block(8, 8)
        self.up = nn.Module()
        self.up.dec2, self.up.dec1 = block(16, 4), block(8, 4)
        self.head = nn.Conv2d(4, 2, 1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("mean", torch.full((3, 1, 1), 0.5))

    def forward(self, x: Tensor, sharpen: bool = False, mask: Tensor | None = None) -> Tensor:
        size = x.shape[-2:]
        a = self.enc1(x - self.mean)
        b = self.enc2(F.max_pool2d(a, 2))
        y = self.middle(F.max_pool2d(b, 2))
        y = self.up.dec2(torch.cat([b, F.interpolate(y, b.shape[-2:])], 1))
        y = self.up.dec1(torch.cat([a, F.interpolate(y, size)], 1)) * self.scale
        if mask is not None:
            y = y * mask
        return self.head(y.relu() if sharpen else y)


class Ladder(nn.Module):
    """Brings its layers along: some inside of others, one twice, one without a home."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(3, 4)
        self.blocks = nn.ModuleList([block(4, 4), block(4, 4)])
        self.head = nn.Conv2d(4, 2, 1)

    def layers(self) -> Iterable[nn.Module]:
        yield self.stem
        yield from self.blocks
        yield self.blocks[1]
        yield nn.AvgPool2d(2)
        yield self.head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers():
            x = layer(x)
        return x


SEQUENCES = {
    "resnet": lambda: resnet_v1(8),
    "amoebanet": lambda: amoebanet_d(3, 16),
    "unet": lambda: unet(base=4, depth=2),
}


def through(stages: Sequence[nn.Module], x: Tensor) -> Any:
    for stage in stages:
        x = stage(x)
    return x


def assert_same(model: nn.Module, cut: Callable[[nn.Module], Sequence[nn.Module]]) -> None:
    """Outputs, gradients and buffers of the stages are those of an uncut copy, under its names."""
    whole = copy.deepcopy(model).double()
    stages = cut(model.double())
    merged: dict[str, Tensor] = {}
    for stage in stages:
        assert not merged.keys() & stage.state_dict().keys()
        merged.update(stage.state_dict())
    assert merged.keys() == whole.state_dict().keys()

    image = rand(2, 3, 21, 18)
    for training in (True, False):
        for module in (whole, *stages):
            module.train(training).zero_grad()
        outputs = []
        for run in (whole, lambda x: through(stages, x)):
            x = image.clone().requires_grad_()
            outputs.append((run(x), x))
            outputs[-1][0].square().sum().backward()
        (expected, x), (found, y) = outputs
        assert torch.equal(found, expected)
        assert torch.equal(x.grad, y.grad)
        grads = {name: p.grad for stage in stages for name, p in stage.named_parameters()}
        for name, parameter in whole.named_parameters():
            assert torch.equal(grads[name], parameter.grad), name
        buffers = {name: b for stage in stages for name, b in stage.named_buffers()}
        for name, buffer in whole.named_buffers():
            assert torch.equal(buffers[name], buffer), name


# ── sequences ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("split_size", [1, 2, 4])
def test_a_sequence_in_stages_is_the_sequence(name, split_size):
    assert_same(SEQUENCES[name](), lambda model: partition(model, Plan(split_size=split_size)))


def test_the_layers_are_the_models_own():
    model = resnet_v1(8)
    assert all(ours is own for ours, own in zip(layers_of(model), model, strict=True))
    stages = partition(model, Plan(split_size=2))
    assert [layer for stage in stages for layer in stage] == list(model)
    assert all(type(stage) is nn.Sequential for stage in stages)
    assert list(stages[0]._modules) == ["stem", "stage1_cell1", "stage2_cell1"]


def test_balance_as_given():
    stages = partition(resnet_v1(8), Plan(split_size=3, balance=(1, 1, 3)))
    assert [len(stage) for stage in stages] == [1, 1, 3]


def test_without_an_example_stages_have_equally_many_layers():
    assert [len(stage) for stage in partition(resnet_v1(8), Plan(split_size=2))] == [3, 2]


def test_with_an_example_they_take_equally_long():
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, stride=s) for s in (2, 1, 1, 1)))
    counts = [
        [len(stage) for stage in partition(model, plan, example=(1, 8, 65, 65))]
        for plan in (Plan(split_size=2), Plan(split_size=2, num_spatial_parts=4))
    ]
    assert counts == [[1, 3], [3, 1]]


def test_a_layer_may_come_twice_in_a_sequence():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu)
    assert_same(model, lambda model: partition(model, Plan(split_size=2)))


def test_the_mode_is_the_models():
    model = resnet_v1(8).eval()
    assert not any(
        m.training for stage in partition(model, Plan(split_size=2)) for m in stage.modules()
    )


# ── a method layers() ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("balance", [(6,), (1, 5), (2, 3, 1)])
def test_a_model_that_brings_its_layers(balance):
    plan = Plan(split_size=len(balance), balance=balance)
    assert_same(Ladder(), lambda model: partition(model, plan))


def test_its_stages_are_rows_of_layers():
    model = Ladder()
    first, second = partition(model, Plan(split_size=2, balance=(2, 4)))
    assert list(first) == [model.stem, model.blocks[0]]
    assert len(second) == 4
    assert second[0] is second[1] is model.blocks[1]
    assert list(second[1:3]) == [model.blocks[1], second[2]]
    assert "blocks.1.0.weight" in second.state_dict()


# ── tracing ──────────────────────────────────────────────────────────────────────────────────────

POINTS = ["enc2", "middle", "up.dec2", "up.dec1", "head"]


@pytest.mark.parametrize(
    ("points", "balance"),
    [
        (["middle"], None),
        (["middle", "up.dec1"], None),
        (POINTS, None),
        (POINTS, (2, 2, 2)),
        (POINTS[::-1], (1, 4, 1)),
        (["up.dec2.2", "up.dec1.1"], None),
    ],
)
def test_a_traced_model_in_stages_is_the_model(points, balance):
    plan = Plan(split_size=len(balance or [*points, 0]), balance=balance)
    assert_same(PlainUNet(), lambda model: partition(model, plan, points))


def test_a_sequence_may_be_cut_inside_of_its_layers():
    model = nn.Sequential(block(3, 4), block(4, 4))
    assert_same(model, lambda model: partition(model, Plan(split_size=2), ["1.1"]))


def test_skips_travel_through_the_stages_between_their_ends():
    model = PlainUNet()
    pieces = layers_of(model, ["middle", "up.dec1"])
    values = pieces[0](rand(1, 3, 21, 18).float())
    tensors = [v for v in values if isinstance(v, Tensor)]
    assert [tuple(v.shape[1:]) for v in tensors] == [(4, 21, 18), (8, 10, 9), (8, 5, 4)]
    assert isinstance(pieces[1](values), Tensor)  # joined: nothing else is needed


def test_modules_that_are_not_cut_stay_what_they_are():
    model = PlainUNet()
    called = []
    model.middle.register_forward_hook(lambda *_: called.append(1))
    stages = partition(model, Plan(split_size=2), ["up.dec2"])
    assert stages[0].middle is model.middle
    through(stages, rand(1, 3, 9, 9).float())
    assert called == [1]


def test_the_model_is_left_as_it_was():
    model = PlainUNet()
    model.middle.eval()
    before = ({**vars(model)}, [m.training for m in model.modules()])
    partition(model, Plan(split_size=2), ["up.dec2"])
    assert ({**vars(model)}, [m.training for m in model.modules()]) == before


def test_what_moves_a_stage_moves_its_pieces():
    stages = partition(PlainUNet(), Plan(split_size=1), POINTS)
    stages = copy.deepcopy(stages)
    for stage in stages:
        stage.to(torch.float64)
    assert through(stages, rand(1, 3, 8, 8)).dtype == torch.float64
    stages[0].load_state_dict({k: v + 1 for k, v in stages[0].state_dict().items()}, assign=True)
    assert stages[0][0].mean.mean() == 1.5


def test_pieces_run_on_tiles():
    (stage,) = partition(PlainUNet(), Plan(), POINTS)
    assert_exact(stage, rand(2, 3, 21, 18), grid=(2, 2))


class Several(nn.Module):
    """Two inputs, a dictionary as the result, a constant, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = self.embed(x) * torch.tensor(2.0)
        h = self.inner(h + y)
        return {"tied": F.linear(h, self.embed.weight), "out": self.out(h) + torch.tensor(1.0)}


def test_several_inputs_and_a_nested_result():
    model = Several()
    (stage,) = partition(model, Plan(), ["inner", "out"])
    x, y = torch.randn(2, 3, 4)
    expected = model(x, y)
    found = stage((x, y))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert stage.state_dict().keys() == model.state_dict().keys()


# ── what cannot be ───────────────────────────────────────────────────────────────────────────────


class Moody(nn.Module):
    """Branches on its mode, or on values."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(2, 2), nn.Linear(2, 2), nn.Identity()
        self.how = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


class Homeless(nn.Module):
    def layers(self) -> list[nn.Module]:
        return [nn.Linear(2, 2)]


class Overlapping(Ladder):
    def layers(self) -> list[nn.Module]:
        return [self.stem, self.stem[0]]


class Forgetful(Ladder):
    def layers(self) -> list[nn.Module]:
        return [self.stem, self.head]


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Gathering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, *xs: Tensor) -> Tensor:
        return self.b(self.a(sum(xs)))


def tied() -> nn.Sequential:
    model = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.ReLU(), c=nn.Linear(2, 2)))
    model.c.weight = model.a.weight
    return model


def hooked() -> nn.Module:
    model = resnet_v1(8)
    model.register_forward_hook(lambda *_: None)
    return model


def chain(module: Any, x: Tensor) -> Tensor:
    return module.b(module.a(x))


def dropping(module: Any, x: Tensor) -> Tensor:
    return module.b(F.dropout(module.a(x), training=module.training))


def deciding(module: Any, x: Tensor) -> Tensor:
    return module.b(module.a(x) if x.sum() > 0 else x)


TWO = {"split_size": 2}

IMPOSSIBLE = [
    (lambda: resnet_v1(8), {"split_size": 6}, None, "the model has 5 layers, and split_size is 6"),
    (
        lambda: resnet_v1(8),
        {"split_size": 2, "balance": (4, 2)},
        None,
        r"balance \(4, 2\) is for 6 layers, and the model has 5: use for instance \(3, 2\)",
    ),
    (tied, TWO, None, r"a.weight = c.weight is used by the stages 0 and 1 \(tied weights\)"),
    (hooked, TWO, None, "Sequential has hooks .* register them on its layers"),
    (
        PlainUNet,
        TWO,
        None,
        r"PlainUNet is no nn.Sequential, .*\(split_points, such as \['middle'\]\), or give it",
    ),
    (lambda: Residual(nn.ReLU()), {}, None, "Residual is no nn.Sequential"),
    (Homeless, {}, None, r"layer 0 of Homeless.layers\(\), Linear, .* make it an attribute"),
    (Overlapping, {}, None, r"the layer 'stem.0' is inside of the layer 'stem': name one"),
    (Forgetful, TWO, None, r"blocks.0.0.weight, .* and \d+ more of Forgetful are in no layer"),
    (PlainUNet, TWO, ["dec"], "'dec' is no submodule of PlainUNet; it has enc1, enc2, middle, up"),
    (PlainUNet, TWO, ["head", "head"], "name a submodule twice"),
    (PlainUNet, {"split_size": 4}, ["head"], "the model has 2 layers, and split_size is 4"),
    (PlainUNet, TWO, ["enc2", "enc2.0"], "'enc2.0' is where piece 1 begins already"),
    (lambda: Moody(chain), TWO, ["a"], "'a' is where piece 0 begins already"),
    (lambda: Moody(chain), TWO, ["unused"], r"\['unused'\] are never called in forward"),
    (lambda: Moody(dropping), TWO, ["b"], "Moody.forward computes something else in training"),
    (lambda: Moody(deciding), TWO, ["b"], r"Moody.forward cannot be traced \(TraceError: .*layers"),
    (Gathering, TWO, ["b"], r"Gathering.forward takes \*xs: .* name its inputs"),
    (Several, TWO, ["inner"], r"embed.weight is used by the stages 0 and 1 \(tied weights\)"),
]


@pytest.mark.parametrize(("make", "settings", "points", "why"), IMPOSSIBLE)
def test_what_cannot_be_cut_says_what_can(make, settings, points, why):
    with pytest.raises(PlanError, match=why):
        partition(make(), Plan(**settings), points)
