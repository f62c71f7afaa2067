"""What a trainer refuses, and what it does beside training."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mpi4dl
from mpi4dl import Plan, PlanError, Trainer
from mpi4dl.comm.communicator import SERIAL, use
from support import networks
from support.exactness import OUTPUT_BOUND, rand, relative
from support.pool import run_pool
from support.ranks import UNDER_TORCHRUN, every_rank_raises
from support.training import batches

sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


torch.manual_seed(1)
NETWORK = networks.plain().double()


def network() -> nn.Sequential:
    """Not made by ranks, which may be threads, and share one generator of random numbers then."""
    return copy.deepcopy(NETWORK)


IMAGES, LABELS = batches(4, (10, 9), steps=1)[0]

# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(UNDER_TORCHRUN, reason="is about a single process")
def test_another_number_of_ranks_is_refused_before_anything():
    with pytest.raises(PlanError, match=r"this plan is for 2 ranks .*, and there is 1"):
        Trainer(nn.Conv2d(3, 3, 3), Plan(split_size=2))  # which is no sequence, either


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"reduction": "median"}, "'mean' or 'sum'"), ({"accumulate": 0}, "at least 1")],
)
def test_options_that_mean_nothing(settings, match):
    with pytest.raises(PlanError, match=match):
        Trainer(network(), Plan(), F.cross_entropy, sgd, **settings)


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (None, LABELS, "images must be a tensor.*they are NoneType"),
        ("image.png", LABELS, "images must be a tensor.*they are str"),
        ({"image": IMAGES, "name": "a"}, LABELS, "images must be a tensor.*they are dict"),
        (torch.tensor(1.0), LABELS, "images must be a tensor"),
        (IMAGES, LABELS[:3], r"images are 4 samples, and there is a tensor of \(3,\)"),
        ([IMAGES, IMAGES[:2]], LABELS, r"images are 4 samples, and there is a tensor of \(2, 3,"),
        (IMAGES[:1], LABELS[:1], "a step has 1 sample, and the plan makes 2 micro-batches"),
    ],
)
def test_batches_that_cannot_be_trained(images, labels, match):
    def program(comm):
        trainer = Trainer(network(), Plan(split_size=2, parts=2), F.cross_entropy, sgd)
        trainer.step(images, labels)

    every_rank_raises(2, program, PlanError, match)


def test_a_trainer_without_a_loss_only_predicts():
    def program(comm):
        trainer = Trainer(network(), Plan(split_size=2))
        assert trainer.predict(IMAGES).shape == (4, networks.CLASSES)
        with pytest.raises(PlanError, match="no loss: give Trainer"):
            trainer.evaluate(IMAGES, LABELS)
        trainer.step(IMAGES, LABELS)

    every_rank_raises(2, program, PlanError, "no loss: give Trainer")


@pytest.mark.parametrize("which", ["shape", "dtype", "labels", "structure"])
def test_ranks_with_different_batches_are_told(which):
    model = network()

    def program(comm):
        trainer = Trainer(copy.deepcopy(model), Plan(split_size=3), F.cross_entropy, sgd)
        images, labels = IMAGES, LABELS
        if comm.rank == 2:
            images = IMAGES[..., :8] if which == "shape" else IMAGES
            images = IMAGES.float() if which == "dtype" else images
            labels = LABELS.int() if which == "labels" else LABELS
            labels = [LABELS, LABELS] if which == "structure" else labels
        trainer.step(images, labels)

    every_rank_raises(3, program, PlanError, "the ranks do not agree about the batch")


def test_ranks_with_different_numbers_of_samples_are_told():
    """Also if one of them has seen as many before."""

    def program(comm):
        trainer = Trainer(network(), Plan(split_size=2), F.cross_entropy, sgd)
        trainer.step(IMAGES, LABELS)
        trainer.step(IMAGES[: 4 - comm.rank], LABELS[: 4 - comm.rank])

    every_rank_raises(2, program, PlanError, "the ranks do not agree about the batch")


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda output, labels: output, r"one number.*a tensor of \(4, 4\)"),
        (lambda output, labels: 1.0, "one number.*float"),
    ],
)
def test_a_loss_is_one_number(loss, match):
    def program(comm):
        with use(SERIAL):
            Trainer(network(), Plan(), loss, sgd).step(IMAGES, LABELS)

    every_rank_raises(1, program, PlanError, match)


class Bright(nn.Module):
    """As many samples leave as are bright enough."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x.mean((1, 2, 3)) > 0]


@pytest.mark.skipif(UNDER_TORCHRUN, reason="only one rank knows")
def test_shapes_that_depend_on_values_are_refused():
    model = nn.Sequential(Bright(), nn.Flatten(), nn.Linear(27, 4)).double()
    bright, dark = torch.ones(2, 3, 3, 3), -torch.ones(1, 3, 3, 3)
    images = torch.cat([bright, bright[:1], dark]).double()

    def program(comm):
        plan = Plan(split_size=2, parts=2, balance=(1, 2))
        Trainer(model, plan, lambda output, labels: output.sum(), sgd).step(images)

    with pytest.raises(PlanError, match=r"must depend on shapes alone"):
        run_pool(2, program)


# ── evaluation ───────────────────────────────────────────────────────────────────────────────────


class Two(nn.Module):
    """A nested output: one for each image, and one for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"map": self.conv(x), "vector": x.mean((-1, -2))}


def two() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*networks.plain()[:6], nn.Dropout(), Two()).double()


EVALUATED: list[dict[str, Any]] = [
    {},
    {"split_size": 3, "parts": 2, "schedule": "1f1b", "checkpoint_activations": True},
    {"split_size": 2, "num_spatial_parts": 2, "spatial_size": 2, "parts": 2, "schedule": "zb-v"},
    {"split_size": 2, "local_dp": 2, "parts": 2},
    {"split_size": 2, "num_spatial_parts": 3, "slice_method": "vertical", "halo_d2": True},
    {"split_size": 2, "parts": 1, "times": 2, "schedule": "gems", "replicas": 2},
]


def distance(output: dict[str, Tensor], labels: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output["map"], labels["map"]) + F.l1_loss(output["vector"], labels["vector"])


@pytest.mark.parametrize("samples", [2, 5])
@pytest.mark.parametrize("settings", EVALUATED)
def test_evaluation_is_that_of_one_process(settings, samples):
    plan = Plan(**settings)
    model = two()
    model[4].eval()
    images = rand(samples, 3, 10, 9)
    whole = copy.deepcopy(model).eval()
    expected = whole(images)
    labels = {name: rand(*value.shape, seed=7) for name, value in expected.items()}
    loss = distance(expected, labels)

    def program(comm):
        trainer = Trainer(copy.deepcopy(model), plan, distance, sgd)
        mine = list(trainer._setup.modules.values())
        before = [m.training for stage in mine for m in stage.modules()]
        state = trainer.state_dict()
        assert relative(trainer.evaluate(images, labels), loss) <= OUTPUT_BOUND
        outputs = trainer.predict(images)
        for name, value in expected.items():
            assert relative(outputs[name], value) <= OUTPUT_BOUND
        assert before == [m.training for stage in mine for m in stage.modules()]
        for name, value in trainer.state_dict().items():
            assert torch.equal(value, state[name]), name
        own = trainer.predict(images, gather=False)
        last = plan.split_size - 1
        assert bool(own) == any(stage == last for _, stage in plan.mesh.held(comm.rank)) or not own
        for here, value in own:
            for name, part in value.items():
                full = part.full_tensor() if isinstance(part, mpi4dl.Tile) else part
                rows = expected[name][here.start : here.stop]
                assert relative(full, rows) <= OUTPUT_BOUND
        return [sample for here, _ in own for sample in here]

    seen = run_pool(plan.world_size, program)
    if not UNDER_TORCHRUN:
        assert {sample for one in seen for sample in one} == set(range(samples))


# ── state ────────────────────────────────────────────────────────────────────────────────────────


def train(trainer: Trainer, steps: int) -> list[float]:
    return [float(trainer.step(x, y)) for x, y in batches(6, (10, 9), steps=steps)]


@pytest.mark.parametrize("other", [Plan(split_size=3, parts=3), Plan(num_spatial_parts=3, parts=2)])
def test_states_go_from_plan_to_plan(other):
    plan = Plan(split_size=2, num_spatial_parts=2, parts=2, schedule="gems", times=2)

    model = network()

    def program(comm):
        trainer = Trainer(copy.deepcopy(model), plan, F.cross_entropy, sgd)
        train(trainer, 2)
        state = trainer.state_dict()
        plain = copy.deepcopy(model)
        assert list(state) == list(plain.state_dict())
        plain.load_state_dict(state)
        for name, value in plain.state_dict().items():
            assert torch.equal(value, state[name])
        again = Trainer(copy.deepcopy(model), other, F.cross_entropy, sgd)
        again.load_state_dict(state)
        for name, value in again.state_dict().items():
            assert torch.equal(value, state[name]), name
        plain.eval()
        assert relative(again.predict(IMAGES), plain(IMAGES)) <= OUTPUT_BOUND

    run_pool(3, program)


def test_the_state_of_another_model_is_refused():
    def program(comm):
        trainer = Trainer(network(), Plan(split_size=2), F.cross_entropy, sgd)
        state = trainer.state_dict()
        state["other"] = state.pop("0.weight")
        trainer.load_state_dict(state)

    every_rank_raises(
        2, program, PlanError, r"1 names are missing \(0.weight\), 1 are unknown \(other\)"
    )


# ── random numbers ───────────────────────────────────────────────────────────────────────────────


def random_network(dropout: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(1)
    convolution = nn.Conv2d(3, 12, 3, padding=1)
    return nn.Sequential(
        convolution,
        dropout(0.4),
        nn.Conv2d(12, 8, 3, padding=1),
        dropout(0.3),
        *networks.plain()[7:],
    ).double()


def losses(plan: Plan, dropout: type[nn.Module]) -> list[float]:
    model = random_network(dropout)
    torch.manual_seed(5)
    trainer = Trainer(model, plan, F.cross_entropy, sgd)
    return [float(trainer.step(x, y)) for x, y in batches(9, (10, 9), steps=3)]


ONE_RANK = Plan(split_size=2, parts=4, schedule="interleaved", stages_per_actor=2)
needs_processes = pytest.mark.skipif(
    not UNDER_TORCHRUN, reason="threads share one generator of random numbers"
)


@needs_processes
@pytest.mark.parametrize(
    "settings",
    [
        *({"parts": 4, "schedule": name} for name in ("gpipe", "1f1b", "zb-h1", "layer")),
        *({"parts": 2, "times": 2, "schedule": name} for name in ("gems", "chimera")),
        {"parts": 2, "replicas": 2},
        {"parts": 4, "checkpoint_activations": True, "schedule": "1f1b"},
    ],
)
def test_dropout_is_the_same_in_every_schedule(settings):
    plan = Plan(split_size=2, **settings)

    def program(comm):
        with use(SERIAL):
            expected = losses(ONE_RANK, nn.Dropout)
            other = losses(Plan(split_size=1, parts=4), nn.Identity)
        assert max(abs(a - b) for a, b in zip(expected, other, strict=True)) > 1e-3
        assert losses(plan, nn.Dropout) == pytest.approx(expected, rel=1e-11, abs=0)

    run_pool(plan.world_size, program)


@needs_processes
@pytest.mark.parametrize(
    "settings",
    [
        {"num_spatial_parts": 2, "spatial_size": 2, "schedule": "1f1b"},
        {"num_spatial_parts": 3, "slice_method": "horizontal"},
        {"local_dp": 2},
        {"num_spatial_parts": 2, "local_dp": 2, "checkpoint_activations": True},
    ],
)
def test_whole_channels_are_dropped_alike_in_every_layout(settings):
    plan = Plan(split_size=2, parts=4, **settings)

    def program(comm):
        with use(SERIAL):
            expected = losses(ONE_RANK, nn.Dropout2d)
        assert losses(plan, nn.Dropout2d) == pytest.approx(expected, rel=1e-11, abs=0)

    run_pool(plan.world_size, program)


# ── half precision ───────────────────────────────────────────────────────────────────────────────


def one_step(model: nn.Module, plan: Plan, precise: bool) -> dict[str, Tensor]:
    """The gradients of one process."""
    model = copy.deepcopy(model).to(torch.float64 if precise else torch.float32)
    images, labels = batches(4, (16, 16), steps=1)[0]
    images = images.to(torch.float64 if precise else torch.float32)
    each = 4 // plan.micro_batches
    for x, y in zip(images.split(each), labels.split(each), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            loss = F.cross_entropy(model(x), y)
        (loss / plan.micro_batches).backward()
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "settings",
    [
        {"split_size": 3, "schedule": "zb-h1"},
        {"split_size": 2, "num_spatial_parts": 4, "schedule": "1f1b", "halo_d2": True},
        {"split_size": 2, "local_dp": 2, "checkpoint_activations": True},
        {"split_size": 2, "num_spatial_parts": (2, 2), "replicas": 2},
    ],
)
def test_bfloat16_rounds_as_one_process_does(settings):
    """Nobody's gradients in bfloat16 are exact; they must not be further off than one process's.

    Tiles add in another order and round in other places, so a single error may be larger than its
    counterpart. All of them together are not: the norm of what is wrong with the whole gradient.
    """
    replicas = settings.get("replicas", 1)
    plan = Plan(**settings, parts=2 // replicas, precision="bf16")
    model = network().float()
    exact, rounded = (one_step(model, plan, precise) for precise in (True, False))

    def program(comm):
        mine = copy.deepcopy(model)
        # A rate of 1 without momentum makes the gradient of what the parameters lose.
        trainer = Trainer(mine, plan, F.cross_entropy, partial(torch.optim.SGD, lr=1.0))
        images, labels = batches(4, (16, 16), steps=1)[0]
        trainer.step(images.float(), labels)
        after = trainer.state_dict()
        return {n: (p.detach() - after[n]).double() for n, p in model.named_parameters()}

    def off(gradients: dict[str, Tensor]) -> float:
        squares = sum((gradients[n] - exact[n]).square().sum() for n in exact)
        return float(squares.sqrt() / sum(g.square().sum() for g in exact.values()).sqrt())

    for gradients in run_pool(plan.world_size, program):
        assert 1e-4 < off(rounded) < 0.1
        assert off(gradients) < 2 * off(rounded)


@pytest.mark.parametrize(
    "settings",
    [
        {"split_size": 3, "parts": 2, "schedule": "zb-h1"},
        {"split_size": 2, "parts": 2, "schedule": "gems", "times": 2, "num_spatial_parts": 2},
    ],
)
def test_a_step_with_an_infinite_gradient_is_skipped_by_all(settings):
    plan = Plan(**settings, precision="fp16")
    model = network().float()
    images, labels = batches(4, (16, 16), steps=1)[0]

    def loss(output, labels):
        classes, factor = labels
        return F.cross_entropy(output, classes) * factor.mean()

    def program(comm):
        trainer = Trainer(copy.deepcopy(model), plan, loss, sgd)
        factors = torch.ones(4), torch.tensor([1.0, torch.inf, 1.0, 1.0])
        states = []
        # The first scale may be too large, and then is halved until it is not.
        for infinite in (0, 0, 0, 0, 0, 1, 0):
            trainer.step(images.float(), [labels, factors[infinite]])
            own = trainer.parameters[0].detach().clone()
            states.append((own, trainer.state_dict()))
        (old, before), (own, after), (new, later) = states[-3:]
        weights = [name for name in before if "running" not in name and "batches" not in name]
        assert torch.equal(old, own)
        assert not torch.equal(own, new)
        assert all(torch.equal(before[n], after[n]) for n in weights)
        assert not any(torch.equal(after[n], later[n]) for n in weights if n.endswith("weight"))
        assert all(value.isfinite().all() for value in later.values())

    run_pool(plan.world_size, program)
