"""Predictions, the search, and what users see of them."""

import json

import pytest
import torch
from torch import nn

import mpi4dl
from mpi4dl import Plan, PlanError
from mpi4dl.cli import main
from mpi4dl.errors import UsageError
from mpi4dl.planner.answer import data, kind, picture, text, words
from mpi4dl.planner.cluster import Cluster, Link
from mpi4dl.planner.cluster import load as load_cluster
from mpi4dl.planner.device import DEVICES, Device, bytes_of, device, load, on, save
from mpi4dl.planner.planning import considered, device_with
from mpi4dl.planner.prediction import Setting, predicted
from mpi4dl.planner.profile import Profile
from mpi4dl.planner.recorder import Convolution, Operator, no_workspace

A100 = DEVICES["a100-80gb"]


def network(depth: int = 5) -> nn.Sequential:
    rows = [
        nn.Sequential(
            nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        )
        for i in range(depth)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    with torch.device("meta"):
        return nn.Sequential(*rows, head).to("meta")


@pytest.fixture(scope="module")
def profile():
    return Profile(network(), (3, 2048, 2048), workspace=no_workspace)


def peak(profile, batch, **settings):
    plan = profile.balanced(Plan(**settings))
    return predicted(profile, plan, Setting(batch, A100, Cluster()))


# ── predictions ──────────────────────────────────────────────────────────────────────────────────


def test_gpipe_keeps_all_micro_batches_and_1f1b_does_not(profile):
    def peaks(schedule):
        return [
            peak(profile, parts, split_size=2, parts=parts, schedule=schedule).peak_of(0)
            for parts in (2, 4, 8)
        ]

    two, four, eight = peaks("gpipe")
    assert eight - four == pytest.approx(2 * (four - two), rel=0.01)
    two, four, eight = peaks("1f1b")
    assert two == pytest.approx(four, rel=1e-4) == pytest.approx(eight, rel=1e-4)


def test_gems_needs_no_more_for_more_batches(profile):
    few, many = (peak(profile, n, split_size=2, schedule="gems", times=n) for n in (2, 6))
    assert few.peak == pytest.approx(many.peak, rel=1e-4)
    assert few.seconds < many.seconds


def test_activations_that_are_computed_again_need_less_and_take_longer(profile):
    kept, again = (peak(profile, 1, checkpoint_activations=c) for c in (False, True))
    assert again.peak < 0.85 * kept.peak
    assert again.seconds > 1.2 * kept.seconds


def test_tiles_are_faster_the_more_there_are(profile):
    one, four = peak(profile, 1), peak(profile, 1, num_spatial_parts=4)
    assert 1 < one.seconds / four.seconds < 4
    assert four.links["tiles"] > 0


def test_thousands_of_ranks_are_a_few_workers(profile):
    plan = profile.balanced(Plan(split_size=2, num_spatial_parts=4, parts=4, replicas=3200))
    cluster = Cluster(ranks_per_node=4)
    found = predicted(profile, plan, Setting(4 * 3200, A100, cluster))
    assert plan.world_size == 16_000
    assert len(found.timeline.spans) == 2
    assert found.peak_of(15_999) == found.peak_of(4)


def test_more_ranks_than_cores_take_turns(profile):
    plan = profile.balanced(Plan(replicas=4))
    seconds = [
        predicted(profile, plan, Setting(4, A100, Cluster(cores=cores))).timeline.makespan
        for cores in (4, 2)
    ]
    assert seconds[1] == pytest.approx(2 * seconds[0])


def test_half_precision_is_not_predicted(profile):
    with pytest.raises(PlanError, match="fp32 only"):
        peak(profile, 1, precision="bf16")


# ── devices and clusters ─────────────────────────────────────────────────────────────────────────


def test_a_curve_is_a_straight_line_in_logarithms():
    curve = ((10.0, 1.0), (1000.0, 100.0))
    assert on(curve, 100) == pytest.approx(10)
    assert on(curve, 1) == 1
    assert on(curve, 10_000) == pytest.approx(1000)


def test_a_convolution_that_was_not_measured_is_like_its_neighbours():
    curves = {"conv forward 3x3/1 g1 64>64": ((100.0, 1.0), (10_000.0, 100.0))}
    known = Device("here", "cpu", 1, 1.0, 1.0, 0.0, curves=curves)
    c = Convolution((1, 128, 32, 32), (128, 128, 3, 3), (1, 1), (1, 1), (1, 1), 1, False, (), 1000)
    assert known.seconds(Operator("convolution", 0, 0, c)) == pytest.approx(40)


def test_a_device_file_gives_the_device_back(tmp_path):
    made = Device("here", "cpu", 8, 1e9, 1e9, 1e-6, curves={"add": ((1.0, 2.0), (3.0, 4.0))})
    save(made, tmp_path / "here.json")
    again = load(tmp_path / "here.json")
    assert (again.name, again.memory, again.curves) == (made.name, made.memory, made.curves)


@pytest.mark.parametrize(
    ("written", "size"), [("80GB", 80 * 10**9), ("16GiB", 2**34), ("1.5 MB", 1_500_000), ("7", 7)]
)
def test_amounts_of_memory(written, size):
    assert bytes_of(written) == size


def test_the_device_that_has_the_memory():
    assert device_with(bytes_of("40GB")).name == "a100-40gb"
    assert device_with(bytes_of("100GB")).name == "h200-141gb"


def test_a_cluster_file(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "nodes: 2   # of many\nranks_per_node: 8\nbetween:\n  latency: 1e-5\n  bandwidth: 5e9\n"
        "  shared: true\ncores: null\n"
    )
    cluster = load_cluster(file)
    assert (cluster.ranks, cluster.between) == (16, Link(1e-5, 5e9, shared=True))
    assert cluster.exchange(5e9, tuple(range(16))) == pytest.approx(8, rel=1e-3)
    assert cluster.for_ranks(100).nodes == 13


@pytest.mark.parametrize("text", ["nodes 2", "knots: 2", "nodes: many", "inside: 3"])
def test_a_cluster_file_that_is_none(tmp_path, text):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"cluster\.yaml is no description of a cluster"):
        load_cluster(file)


def test_a_device_that_nobody_knows():
    with pytest.raises(UsageError, match="mpi4dl calibrate"):
        device("abacus")


# ── the search ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def found():
    return considered(network(), (3, 2048, 2048), 4, 8, "3GB", "a100-80gb")


def test_what_is_chosen_fits_and_nothing_that_fits_is_faster(found):
    assert found.best.peak <= 3e9
    assert found.best.plan.world_size <= 8
    assert all(found.best.seconds <= p.seconds for p in found.tried if p.peak <= 3e9)
    assert any(p.peak > 3e9 for p in found.tried)


def test_the_front_falls(found):
    front = [(p.seconds, p.peak) for p in found.front]
    assert front == sorted(front)
    assert [size for _, size in front] == sorted((size for _, size in front), reverse=True)


def test_the_answer_says_what_why_and_what_not(found):
    answer = text(found)
    for part in ("predicted:", "images/s", "why this one", "refused", "GB a rank of 3.0 GB"):
        assert part in answer
    assert json.loads(json.dumps(data(found)))["best"]["peak"] == found.best.peak


def test_the_picture_of_the_front(found, tmp_path):
    pytest.importorskip("matplotlib")
    picture(found, tmp_path / "front.png")
    assert (tmp_path / "front.png").stat().st_size > 10_000


def test_kinds_of_plans():
    assert kind(Plan()) == "one rank"
    assert kind(Plan(split_size=2, num_spatial_parts=4, parts=2)) == "tiles + stages"
    assert words(Plan(split_size=2, balance=(1, 2), replicas=2)) == "split_size=2, replicas=2"


def test_nothing_fits():
    with pytest.raises(PlanError, match=r"needs least, .* Use more devices"):
        mpi4dl.plan(network(), (3, 4096, 4096), 1, 1, memory="1GB", device="a100-80gb")


def test_plan_gives_a_plan_that_can_be_carried_out():
    plan = mpi4dl.plan(network(), (3, 512, 512), batch_size=4, devices=4, memory="16GB")
    assert isinstance(plan, Plan)
    assert plan.world_size <= 4
    assert sum(plan.balance) == 6


# ── the command ──────────────────────────────────────────────────────────────────────────────────

WORDS = [
    "plan",
    "--model",
    "resnet18",
    "--image-size",
    "512",
    "--batch-size",
    "2",
    "--devices",
    "2",
]


def test_the_command_answers(capsys, tmp_path):
    file = tmp_path / "plan.json"
    assert main([*WORDS, "--device-memory", "16GB", "--json", str(file)]) == 0
    assert "predicted:" in capsys.readouterr().out
    assert json.loads(file.read_text())["device"] == "v100-16gb"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--devices", "0"], "devices is 0"),
        (["--device-memory", "lots"], "'lots' is no amount of memory"),
        (["--device", "abacus"], "the device 'abacus' is neither a file nor one of"),
        (["--cluster", "nowhere.yaml"], "nowhere.yaml is no description of a cluster"),
        (["--json", "nowhere/plan.json"], "there is no folder"),
        (["--device-memory", "100MB"], "no plan fits"),
    ],
)
def test_mistakes_have_one_answer(more, says, capsys):
    assert main([*WORDS, *more]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("mpi4dl: ")
    assert says in lines[0]
