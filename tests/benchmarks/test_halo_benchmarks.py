"""The halo benchmarks: what they refuse, what they count, and that they notice a wrong halo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from mpi4dl import Layout
from support.ranks import UNDER_TORCHRUN, run_ranks

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "communication" / "halo"
sys.path.insert(0, str(FOLDER))

import halo_benchmark  # noqa: E402
import halo_exchange  # noqa: E402
import halo_options  # noqa: E402
import halo_validation  # noqa: E402
import halo_work  # noqa: E402
import sweep  # noqa: E402

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="starts its ranks itself")

EXCHANGE = "benchmark_sp_halo_exchange.py"
COMPUTE = "benchmark_sp_halo_exchange_with_compute.py"
VALIDATED = "benchmark_sp_halo_exchange_with_compute_val.py"
LAYER = "benchmark_sp_halo_exchange_conv.py"
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "MPI4DL", "OMPI_", "MV2_", "PMI_", "SLURM")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(OF_LAUNCHERS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", [EXCHANGE])


def some_options(**changes):
    parsed = halo_options.parsed(halo_options.benchmark_parser(""), ["--device", "cpu"])
    return Namespace(**{**vars(parsed), "backward": True, "with_tile": True, **changes})


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
    options = vars(halo_options.parsed(halo_options.benchmark_parser(""), []))
    assert {name: options[name] for name in DEFAULTS} == DEFAULTS


REFUSED = {
    "--image-size 1": "1 x 1 pixels is too small for 4 tiles (square), of which 3 would",
    "--image-size 8 --num-spatial-parts 9 --slice-method vertical": "of which 1 would hold no",
    "--image-size 0": "--image-size is 0 x 0; an image has at least one pixel",
    "--image-size 8by8": "'8by8' is neither a size nor a height x width",
    "--image-size -8": "neither a size nor a height x width",
    "--halo-len -1": "--halo-len is -1; it must be at least 0",
    "--halo-len one": "invalid int value: 'one'",
    "--slice-method diagonal": "unknown slice method 'diagonal'",
    "--slice-method 2x3": "the grid 2x3 has 6 parts, and 4 were asked for",
    "--slice-method 1x2x2": "cannot cut the size",
    "--iterations 0": "--iterations is 0; it must be at least 1",
    "--warmup -1": "--warmup is -1; it must be at least 0",
    "--batch-size 0": "--batch-size is 0; it must be at least 1",
    "--in-channels 0": "--in-channels is 0; it must be at least 1",
    "--out-channels 0": "--out-channels is 0; it must be at least 1",
    "--num-spatial-parts 0": "--num-spatial-parts is 0; it must be at least 1",
    "--threads 0": "--threads is 0; it must be at least 1",
    "--backend pigeon": "there is no backend 'pigeon' here: use one of",
    "--json nowhere/at/all.json": "there is no folder nowhere/at to write all.json to",
    "--colour red": "unrecognized arguments: --colour red",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_run_is_one_message_and_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        halo_options.layout_for(
            halo_options.parsed(halo_options.benchmark_parser(""), arguments.split())
        )
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert REFUSED[arguments] in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not shown.out


def test_a_gpu_is_refused_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        halo_options.parsed(halo_options.benchmark_parser(""), ["--device", "cuda"])
    assert "--device is cuda, and PyTorch finds no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 1])
def test_another_number_of_ranks_is_refused_on_rank_0(rank, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", "3")
    with pytest.raises(SystemExit) as ended:
        halo_options.parsed(halo_options.benchmark_parser(""), [])
    assert ended.value.code == 2
    said = "--num-spatial-parts is 4, and MPICH started 3 ranks"
    assert (said in capsys.readouterr().err) == (rank == 0)


def test_half_of_what_a_launcher_sets_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit) as ended:
        halo_options.parsed(halo_options.benchmark_parser(""), [])
    assert ended.value.code == 2
    assert "the environment has RANK and lacks WORLD_SIZE" in capsys.readouterr().err


def test_a_sweep_is_checked_before_it_starts(capsys):
    arguments = "--image-sizes 64 2 --slice-methods square vertical".split()
    options = halo_options.parsed(sweep.sweep_parser(), arguments)
    with pytest.raises(SystemExit):
        list(sweep.configurations(options))
    assert "2 x 2 pixels is too small for 4 tiles (vertical)" in capsys.readouterr().err


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
        exchange = halo_exchange.Exchange(layout, halo, comm)
        tile = whole[(..., *box.slices_in(full))]
        around = exchange.fetch(tile)
        seen = torch.zeros(size, dtype=torch.long)
        for strip, where in zip(around, exchange.boxes, strict=True):
            assert torch.equal(strip, whole[(..., *where.slices_in(full))])
            seen[where.slices_in(full)] += 1
        wide = halo_work._widened(box, layout, halo)
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
        counts = halo_benchmark._counts(halo_work.compute, options, layout, comm)
        return counts["exchange alone"], counts["both, overlapped"]

    for alone, overlapped in run_ranks(ranks, program):
        assert alone == overlapped
        messages, received, _ = alone
        area = [
            sum(strip.volume for strip in halo_exchange.strips(box, size, halo))
            for box in layout.boxes
        ]
        assert received == [3 * 4 * n for n in area]
        assert max(messages) < max(ranks, 2)


@pytest.mark.parametrize("work", ["exchange", "compute", "layer"])
def test_float16_halves_what_it_is_said_to(work):
    layout = Layout.square((8, 9), 4)
    plain, half = some_options(in_channels=3), some_options(in_channels=3, fp16_allreduce=True)

    def program(comm):
        counts = [
            halo_benchmark._counts(getattr(halo_work, work), options, layout, comm)
            for options in (plain, half)
        ]
        for name, (messages, received, reduced) in counts[0].items():
            fewer = [messages, [n // 2 for n in received], reduced]
            if work == "layer":
                fewer = [messages, received, [n // 2 for n in reduced]]
            assert list(counts[1][name]) == fewer
        return sum(sum(received) for _, received, _ in counts[0].values())

    assert all(run_ranks(4, program))


def test_the_layer_receives_as_many_gradients_as_it_sent_pixels():
    layout = Layout.sliced((7, 9), 3, "vertical")
    options = some_options(image_size=(7, 9), num_spatial_parts=3, out_channels=5)

    def program(comm):
        return halo_benchmark._counts(halo_work.layer, options, layout, comm)

    for counts in run_ranks(3, program):
        assert counts["forward"][:2] == counts["backward"][:2] == ([1, 2, 1], [28, 56, 28])
        assert counts["together"][:2] == ([2, 4, 2], [56, 112, 56])
        weights_and_which_there_are = [4 * (5 * 9 + 5 + 2)] * 3
        assert counts["gradients summed"] == ([0] * 3, [0] * 3, weights_and_which_there_are)


# ── the validation ───────────────────────────────────────────────────────────────────────────────


class Tampering(halo_exchange.Through):
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
    for verdict in run_ranks(ranks, lambda comm: halo_validation.validate(options, layout, comm)):
        assert verdict.passed
        assert "validation passed: 0 of" in str(verdict)


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
@pytest.mark.parametrize(("at", "pixels"), [(1, 1), (2, 0)])
def test_one_pixel_that_arrives_wrong_at_one_rank_fails_on_all(wrong, at, pixels):
    options, layout = some_options(in_channels=2), Layout.square((8, 8), 4)

    def program(comm):
        passing = Tampering(comm, at) if comm.rank == wrong else comm
        return halo_validation.validate(options, layout, passing)

    for verdict in run_ranks(4, program):
        assert not verdict.passed
        assert verdict.wrong_pixels == pixels
        assert (verdict.error > halo_validation.TOLERANCE) == (at == 2)
        assert "validation FAILED" in str(verdict)


def test_what_failed_ends_with_exit_code_1_and_is_not_measured(monkeypatch, capsys):
    failed = halo_validation.Verdict(10, 1, 0.0)
    monkeypatch.setattr(sys, "argv", [VALIDATED, "--num-spatial-parts", "1", "--device", "cpu"])
    monkeypatch.setattr(halo_benchmark, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit) as ended:
        halo_benchmark.main(halo_options.benchmark_parser(""), halo_work.compute, lambda *_: failed)
    assert ended.value.code == 1
    assert "validation FAILED: 1 of 10 received pixels" in capsys.readouterr().out


def test_what_is_not_a_number_is_not_right():
    assert not halo_validation.Verdict(10, 0, float("nan")).passed
    found = torch.tensor([1.0, float("nan")])
    assert halo_validation.wrong_pixels([found], [found]) == 1
    assert not halo_validation.relative_error(torch.ones(2), found) <= 1.0


def test_shifted_images_differ_in_every_pixel():
    options = some_options(image_size=(40, 50), in_channels=2)
    box = Layout.square((40, 50), 1).boxes[0]
    image = halo_validation.image(options, box)
    for axis, by in ((-1, 1), (-1, 3), (-2, 1), (-2, 2), (1, 1)):
        assert not torch.isclose(image, image.roll(by, axis)).any()
    assert torch.equal(image, image.half().double())


# ── statistics ───────────────────────────────────────────────────────────────────────────────────


def test_statistics_of_a_result():
    result = halo_benchmark.Result("forward", [float(n) for n in range(1, 21)], 3.0, [3], [2100], 0)
    found = result.record()
    assert (found["mean_ms"], found["median_ms"], found["min_ms"]) == (10.5, 10.5, 1.0)
    assert found["p95_ms"] == 19.0
    assert found["bandwidth_mb_per_s"] == [0.2]  # 2100 bytes in 10.5 ms
    assert halo_benchmark.percentile([5.0], 0.95) == 5.0


# ── the scripts, with ranks that are processes ───────────────────────────────────────────────────

SMALL = "--image-size 13x18 --in-channels 2 --out-channels 3 --warmup 1 --iterations 3".split()


def run(script, *arguments, launcher=()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *launcher, str(FOLDER / script), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )


def check(record, names, ranks):
    assert record["ranks"] == ranks
    assert [result["name"] for result in record["results"]] == names
    for result in record["results"]:
        assert len(result["times_ms"]) == 3
        assert 0 < result["min_ms"] <= result["median_ms"] <= result["p95_ms"]
        assert result["min_ms"] <= result["mean_ms"]
        assert len(result["messages"]) == len(result["received_bytes"]) == ranks


SCRIPTS = {
    EXCHANGE: ["forward", "backward", "together", "forward, tile included"],
    COMPUTE: ["exchange alone", "convolution alone", "both, overlapped"],
    VALIDATED: ["exchange alone", "convolution alone", "both, overlapped"],
    LAYER: ["forward", "backward", "gradients summed", "together"],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_its_own_ranks(script, tmp_path):
    more = ["--backward", "--with-tile"] if script == EXCHANGE else []
    file = tmp_path / "out.json"
    done = run(script, *SMALL, "--num-spatial-parts", "3", *more, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    check(record, SCRIPTS[script], 3)
    assert record["benchmark"] == Path(script).stem
    assert all(f"[0] {name}" in done.stdout for name in SCRIPTS[script])
    if script == VALIDATED:
        assert "validation passed: 0 of" in done.stdout
        assert record["validation"]["wrong_pixels"] == 0
        assert record["validation"]["pixels"] == 2 * 4 * 13  # both sides of two cuts, two channels
    else:
        assert record["validation"] is None
    if script == EXCHANGE:
        forward = record["results"][0]
        assert forward["messages"] == [1, 2, 1]
        assert forward["received_bytes"] == [4 * 2 * 13 * n for n in (1, 2, 1)]


def test_torchrun_starts_the_ranks(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    file = tmp_path / "out.json"
    arguments = [*SMALL, "--num-spatial-parts", "2", "--json", str(file), "--slice-method", "2x1"]
    done = run(EXCHANGE, *arguments, "--fp16-allreduce", launcher=launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    check(record, ["forward"], 2)
    assert record["results"][0]["received_bytes"] == [2 * 2 * 18, 2 * 2 * 18]


def test_torchrun_with_another_number_of_ranks_is_told_once():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(EXCHANGE, launcher=launcher)
    assert done.returncode != 0
    said = "--num-spatial-parts is 4, and torchrun started 2 ranks"
    assert done.stderr.count(said) == 1


def test_a_refusal_starts_nothing():
    done = run(LAYER, "--slice-method", "2x3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_sweep_draws_its_curves(tmp_path):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    done = run(
        "sweep.py",
        *"--num-spatial-parts 2 --warmup 1 --iterations 2 --image-sizes 8 16x12".split(),
        *"--halo-lens 0 2 --slice-methods square 2x1".split(),
        *("--json", str(file), "--picture", str(picture)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(file.read_text())
    found = {(r["slice_method"], r["halo_len"], tuple(r["image_size"])) for r in runs}
    assert len(found) == len(runs) == 8
    assert picture.read_bytes().startswith(b"\x89PNG")
