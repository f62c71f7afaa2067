"""The halo benchmarks: what they refuse, what they count, and that they notice a wrong halo."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from mpi4dl import Layout
from mpi4dl.train import HALO, answer, halo, halo_flags
from mpi4dl.train.arguments import Parser
from mpi4dl.train.halo import commands, passing, validation, work
from mpi4dl.train.halo.exchange import Exchange, strips
from mpi4dl.train.halo.measure import _counts
from mpi4dl.train.halo.result import Result, percentile
from support.ranks import UNDER_TORCHRUN, run_ranks

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="asks for other numbers of ranks")


def some_options(**changes):
    parser = halo_flags(HALO["exchange"], Parser(prog="bench"))
    parsed = parser.parse_args(["--device", "cpu", "--backward", "--with-tile"])
    return Namespace(**{**vars(parsed), **changes})


# ── the command line ─────────────────────────────────────────────────────────────────────────────

DEFAULTS = {
    "fp16_allreduce": False,
    "image_size": (8, 8),
    "batch_size": 1,
    "halo_len": 1,
    "in_channels": 1,
    "out_channels": 256,
    "warmup": 10,
    "iterations": 100,
    "num_spatial_parts": 4,
    "slice_method": "square",
}


def test_the_defaults_are_those_of_the_original():
    assert {name: vars(some_options())[name] for name in DEFAULTS} == DEFAULTS


REFUSED = {
    "--image-size 1": "1 x 1 pixels is too small for 4 tiles (square), of which 3 would",
    "--image-size 8 --num-spatial-parts 9 --slice-method vertical": "of which 1 would hold no",
    "--image-size 0": "--image-size is 0x0; an image has at least one pixel",
    "--image-size 8by8": "--image-size is '8by8', neither a size nor a height x width",
    "--image-size -8": "neither a size nor a height x width",
    "--halo-len -1": "--halo-len is -1; it must be at least 0",
    "--halo-len one": "--halo-len is 'one'; it must be an integer",
    "--slice-method diagonal": "unknown slice method 'diagonal'",
    "--slice-method 2x3": "has 6 parts, and 4 were asked for; use --num-spatial-parts 6",
    "--slice-method 1x2x2": "cannot cut the size",
    "--iterations 0": "--iterations is 0; it must be at least 1",
    "--warmup -1": "--warmup is -1; it must be at least 0",
    "--batch-size 0": "--batch-size is 0; it must be at least 1",
    "--in-channels 0": "--in-channels is 0; it must be at least 1",
    "--out-channels 0": "--out-channels is 0; it must be at least 1",
    "--num-spatial-parts 0": "--num-spatial-parts is 0; it must be at least 1",
    "--threads 0": "--threads is 0; it must be at least 1",
    "--backend pigeon": "there is no backend 'pigeon' here: use one of",
    "--backend mpi": "mpi4py is for ranks that mpirun starts: use mpirun -np 4",
    "--json nowhere/at/all.json": "there is no folder",
    "--json .": "--json . is a folder: name a file",
    "--colour red": "unrecognized arguments: --colour red",
    "--image-sice 8": "did you mean --image-size?",
}


@pytest.fixture
def refused(monkeypatch, capsys):
    """What is said by a command that must end with 2 before anything starts."""

    def refused(name, line):
        monkeypatch.setattr(commands, "start_ranks", lambda *_: pytest.fail("ranks were started"))
        monkeypatch.setattr(commands, "_rank", lambda *_: pytest.fail("a rank was started"))
        assert halo(name, line.split(), "bench") == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err == "" or shown.err.startswith("mpi4dl: ")
        assert len(shown.err.splitlines()) <= 1
        return shown.err

    return refused


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_run_is_one_message_and_exit_code_2(line, refused):
    assert REFUSED[line] in refused("exchange", line)


def test_a_gpu_is_refused_where_there_is_none(monkeypatch, refused):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "--device is cuda, and this machine shows no GPU" in refused("conv", "--device cuda")


@pytest.mark.parametrize("rank", [0, 1])
def test_another_number_of_ranks_is_refused_on_rank_0(rank, monkeypatch, refused):
    monkeypatch.setattr(answer.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", "3")
    said = "--num-spatial-parts is 4, and MPICH started 3 ranks"
    assert (said in refused("compute", "")) == (rank == 0)


def test_half_of_what_a_launcher_sets_is_refused(monkeypatch, refused):
    monkeypatch.setenv("RANK", "0")
    assert "the environment has RANK and lacks WORLD_SIZE" in refused("exchange", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--image-sizes 64 2 --slice-methods square vertical", "is too small for 4 tiles (vert"),
        ("--picture nowhere/at/all.png", "--picture nowhere/at/all.png: there is no folder"),
    ],
)
def test_a_sweep_is_checked_before_it_starts(line, expected, refused):
    assert expected in refused("sweep", line)


# ── the exchange ─────────────────────────────────────────────────────────────────────────────────

CASES = [
    (4, (8, 8), 1, "square"),
    (4, (8, 8), 3, "vertical"),
    (6, (13, 17), 2, "2x3"),
    (3, (7, 5), 4, "horizontal"),  # a halo wider than a tile
    (9, (9, 10), 1, "3x3"),
    (2, (5, 6), 0, "vertical"),
    (1, (5, 6), 2, "square"),
]


@pytest.mark.parametrize(("ranks", "size", "halo", "method"), CASES)
def test_halos_are_the_pixels_of_the_image_and_their_adjoint_goes_home(ranks, size, halo, method):
    whole = torch.arange(2 * 3 * size[0] * size[1], dtype=torch.float64).view(2, 3, *size)
    layout = Layout.sliced(size, ranks, method)
    full = layout.boxes[0].full(size)

    def program(comm):
        box = layout.boxes[comm.rank]
        exchange = Exchange(layout, halo, comm)
        tile = whole[(..., *box.slices_in(full))]
        around = exchange.fetch(tile)
        seen = torch.zeros(size, dtype=torch.long)
        for strip, where in zip(around, exchange.boxes, strict=True):
            assert torch.equal(strip, whole[(..., *where.slices_in(full))])
            seen[where.slices_in(full)] += 1
        wide = work._widened(box, layout, halo)
        expected = torch.zeros_like(seen)
        expected[wide.slices_in(full)] = 1
        expected[box.slices_in(full)] = 0
        assert torch.equal(seen, expected)  # the halo with its corners, every pixel once
        # <fetch(x), y> = <x, give_back(y)>, summed over the ranks
        values = [torch.randn_like(strip) for strip in around]
        gradient = torch.zeros_like(tile)
        exchange.give_back(values, gradient)
        forward = sum(float((a * b).sum()) for a, b in zip(around, values, strict=True))
        return forward, float((tile * gradient).sum())

    forward, backward = zip(*run_ranks(ranks, program), strict=True)
    assert sum(forward) == pytest.approx(sum(backward), rel=1e-12)


@pytest.mark.parametrize(("ranks", "size", "halo", "method"), CASES)
def test_the_messages_are_those_of_a_convolution_on_tiles(ranks, size, halo, method):
    layout = Layout.sliced(size, ranks, method)
    options = some_options(image_size=size, halo_len=halo, num_spatial_parts=ranks, in_channels=3)

    def program(comm):
        counts = _counts(work.compute, options, layout, comm)
        return counts["exchange alone"], counts["both, overlapped"]

    for alone, overlapped in run_ranks(ranks, program):
        assert alone == overlapped
        messages, received, _ = alone
        area = [sum(strip.volume for strip in strips(box, size, halo)) for box in layout.boxes]
        assert received == [3 * 4 * n for n in area]
        assert max(messages) < max(ranks, 2)


@pytest.mark.parametrize("measured", [work.exchange, work.compute, work.layer])
def test_float16_halves_what_it_is_said_to(measured):
    layout = Layout.square((8, 9), 4)
    plain, half = some_options(in_channels=3), some_options(in_channels=3, fp16_allreduce=True)

    def program(comm):
        counts = [_counts(measured, options, layout, comm) for options in (plain, half)]
        for name, (messages, received, reduced) in counts[0].items():
            fewer = [messages, [n // 2 for n in received], reduced]
            if measured is work.layer:
                fewer = [messages, received, [n // 2 for n in reduced]]
            assert list(counts[1][name]) == fewer
        return sum(sum(received) for _, received, _ in counts[0].values())

    assert all(run_ranks(4, program))


def test_the_layer_receives_as_many_gradients_as_it_sent_pixels():
    layout = Layout.sliced((7, 9), 3, "vertical")
    options = some_options(image_size=(7, 9), num_spatial_parts=3, out_channels=5)

    def program(comm):
        return _counts(work.layer, options, layout, comm)

    for counts in run_ranks(3, program):
        assert counts["forward"][:2] == counts["backward"][:2] == ([1, 2, 1], [28, 56, 28])
        assert counts["together"][:2] == ([2, 4, 2], [56, 112, 56])
        weights_and_which_there_are = [4 * (5 * 9 + 5 + 2)] * 3
        assert counts["gradients summed"] == ([0] * 3, [0] * 3, weights_and_which_there_are)


# ── the validation ───────────────────────────────────────────────────────────────────────────────


class Tampering(passing.Through):
    """Adds a little to one pixel of what arrives in exchange number `at`."""

    def __init__(self, comm, at):
        super().__init__(comm)
        self.at, self.number = at, 0

    def start(self, sends, receives):
        pending = super().start(sends, receives)
        self.number += 1
        if self.number != self.at or not receives:
            return pending
        return Namespace(wait=lambda: (pending.wait(), receives[0][1].view(-1)[:1].add_(1e-5)))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("ranks", "size", "halo", "method"), CASES)
def test_what_is_right_passes(ranks, size, halo, method, half):
    options = some_options(
        image_size=size, halo_len=halo, num_spatial_parts=ranks, in_channels=3, out_channels=20
    )
    options.fp16_allreduce = half
    layout = Layout.sliced(size, ranks, method)
    for verdict in run_ranks(ranks, lambda comm: validation.validate(options, layout, comm)):
        assert verdict.passed
        assert "validation passed: 0 of" in str(verdict)


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
@pytest.mark.parametrize(("at", "pixels"), [(1, 1), (2, 0)])
def test_one_pixel_that_arrives_wrong_at_one_rank_fails_on_all(wrong, at, pixels):
    options, layout = some_options(in_channels=2), Layout.square((8, 8), 4)

    def program(comm):
        passing = Tampering(comm, at) if comm.rank == wrong else comm
        return validation.validate(options, layout, passing)

    for verdict in run_ranks(4, program):
        assert not verdict.passed
        assert verdict.wrong_pixels == pixels
        assert (verdict.error > validation.TOLERANCE) == (at == 2)
        assert "validation FAILED" in str(verdict)


def test_what_failed_ends_with_exit_code_1_and_is_not_measured(monkeypatch, capsys):
    failed = validation.Verdict(10, 1, 0.0)
    monkeypatch.setattr(commands, "validate", lambda *_: failed)
    monkeypatch.setattr(commands, "measure", lambda *_: pytest.fail("measured"))
    assert halo("validate", ["--num-spatial-parts", "1", "--device", "cpu"], "bench") == 1
    assert "validation FAILED: 1 of 10 received pixels" in capsys.readouterr().out


def test_what_is_not_a_number_is_not_right():
    assert not validation.Verdict(10, 0, float("nan")).passed
    found = torch.tensor([1.0, float("nan")])
    assert validation.wrong_pixels([found], [found]) == 1
    assert not validation.relative_error(torch.ones(2), found) <= 1.0


def test_shifted_images_differ_in_every_pixel():
    options = some_options(image_size=(40, 50), in_channels=2)
    box = Layout.square((40, 50), 1).boxes[0]
    image = validation.image(options, box)
    for axis, by in ((-1, 1), (-1, 3), (-2, 1), (-2, 2), (1, 1)):
        assert not torch.isclose(image, image.roll(by, axis)).any()
    assert torch.equal(image, image.half().double())


# ── statistics ───────────────────────────────────────────────────────────────────────────────────


def test_statistics_of_a_result():
    result = Result("forward", [float(n) for n in range(1, 21)], 3.0, [3], [2100], 0)
    found = result.record()
    assert (found["mean_ms"], found["median_ms"], found["min_ms"]) == (10.5, 10.5, 1.0)
    assert found["p95_ms"] == 19.0
    assert found["bandwidth_mb_per_s"] == [0.2]  # 2100 bytes in 10.5 ms
    assert percentile([5.0], 0.95) == 5.0
