"""The page of a run, as a browser shows it; and the trace of a step."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpi4dl import cli
from mpi4dl.train.runs.records import Lines
from mpi4dl.train.runs.report import page, report
from mpi4dl.train.runs.report.charts import KINDS, LINES, Line, line_chart, ticks
from support.ranks import UNDER_TORCHRUN

from .conftest import trained

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="plans of other numbers of ranks")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run on four tiles and two ranks after them."""
    from mpi4dl.train.runs import configuration
    from mpi4dl.train.runs.command import write_configuration

    made = configuration(
        {
            "folder": str(tmp_path_factory.mktemp("runs") / "a run"),
            "model": {"name": "unet", "arguments": {"base": 4, "depth": 2}},
            "data": {"kind": "synthetic-segmentation", "view": {"size": [64, 96]}, "samples": 16},
            "training": {"epochs": 2, "batch_size": 2},
            "evaluation": {"metrics": ["iou"]},
            "plan": {"split_size": 2, "num_spatial_parts": 4, "local_dp": 2, "parts": 2},
            "checkpoints": {"every": 0},
        }
    )
    write_configuration(made)
    trained(made)
    return Path(made.folder)


class Found(HTMLParser):
    """Every address that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.addresses += [v for n, v in attrs if n in ("src", "href", "data", "action") and v]
        if tag in ("script", "link", "iframe"):
            self.addresses.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [v for n, v in attrs if n in ("src", "href", "data", "action") and v]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_needs_nothing_else_and_has_everything(run):
    text = page(run)
    found = Found()
    found.feed(text)
    assert not found.open, "everything that is opened is closed"
    assert found.addresses
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses)
    assert "url(" not in text
    assert "@import" not in text
    shown = re.sub(r"<[^>]+>", " ", text)
    for what in ("steps", "16", "loss of the last step", "iou, evaluated", "all epochs are done"):
        assert what in shown
    for what in ("64×96 pixels", "local_dp: 2", "peak memory of each rank", "rank 5"):
        assert what in shown
    assert len(re.findall('class="tile"/>', text)) == 4


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_it(run, tmp_path):
    shot, file = tmp_path / "shot.png", report(run, tmp_path / "page.html")
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1200,2600"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}", file.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert pixels.shape == (2600, 1200, 3)

    def places(colour: str) -> np.ndarray:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        return np.argwhere((abs(pixels - wanted) <= 3).all(-1))

    training, evaluation = (places(colour) for colour in LINES[:2])
    assert len(training) > 400, "lines are drawn"
    assert len(evaluation) > 20
    # The loss's line goes on from left to right within its chart.
    columns = np.unique(training[training[:, 0] < 600][:, 1])
    assert columns.max() - columns.min() > 400
    for name in ("compute", "halo", "transfer"):
        assert len(places(KINDS[name])) > 150, f"bars and spans of {name}"
    # The tiles lie two by two over the thumbnail: borders of four colours.
    below = {n: places(LINES[n]) for n in (1, 2, 3)}
    right, under, across = (points[points[:, 0] > 1000].mean(0) for points in below.values())
    assert under[1] + 100 < right[1]
    assert right[0] + 50 < under[0]
    assert under[1] + 100 < across[1]
    grey = np.ptp(pixels, axis=2) > 60
    assert grey.mean() > 0.02, "the pictures are there"


def test_the_command_writes_it_beside_the_run(run, capsys):
    assert cli.main(["report", str(run)]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file == run / "report.html"
    assert file.read_text(encoding="utf-8") == page(run)


def test_what_is_no_run_is_said(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "is no folder of a run: it has no log.jsonl" in capsys.readouterr().err


def test_a_run_that_has_just_begun_or_went_wrong_has_a_page(tmp_path):
    lines = Lines(tmp_path)
    assert "it has not ended" in page(tmp_path)
    facts = {"loss": float("nan"), "lr": 0.1, "samples_per_second": 2.0}
    lines.write("step", 1, facts)
    lines.close()
    assert "nan" in page(tmp_path)


def test_a_trace_has_spans_of_all_ranks(run):
    trace = json.loads((run / "trace.json").read_text(encoding="utf-8"))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {f"rank {rank}" for rank in range(6)} <= names
    assert {event["pid"] for event in spans} == set(range(6))
    for rank in range(4):
        kinds = {event["cat"] for event in spans if event["pid"] == rank}
        assert {"compute", "halo", "transfer", "gradients"} <= kinds, rank
    called = {event["name"] for event in spans if event["tid"] == 0 and event["pid"] == 0}
    assert {"forward 0F0", "forward 0F1", "backward 0B0", "backward 0B1"} <= called
    assert min(event["ts"] for event in spans) == pytest.approx(0, abs=1e-2)
    assert max(event["ts"] + event["dur"] for event in spans) < 60e6
    # What is communicated lies within what the schedule says, on one clock.
    halos = [e for e in spans if e["pid"] == 0 and e["name"] == "halo"]
    actions = [e for e in spans if e["pid"] == 0 and e["tid"] == 0]
    within = [
        any(a["ts"] <= h["ts"] and h["ts"] + h["dur"] <= a["ts"] + a["dur"] + 1 for a in actions)
        for h in halos
    ]
    assert sum(within) > 0.8 * len(halos) > 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 7, [-2, 0, 2, 4, 6]),
        (1e-4, 5e-4, [1e-4, 2e-4, 3e-4, 4e-4, 5e-4]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_long_lines_are_shortened_and_what_is_no_number_left_out():
    points = [(float(x), 2.0) for x in range(10_000)]
    (drawn,) = re.findall('points="([^"]+)"', line_chart([Line("a", points)], "x"))
    assert 300 < len(drawn.split()) <= 800
    assert line_chart([Line("a", [(1.0, float("inf"))])], "x") == ""
