"""What holds for every test, and the line at the end of a run: how much was compared, how close."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import hypothesis
import pytest
import torch

from mpi4dl.spatial import convolution
from support.exactness import TALLY

torch.set_num_threads(1)
torch.manual_seed(0)  # for modules that are made while tests are collected, on every rank alike
# On a machine with a GPU: MPI4DL_BACKEND=gloo MPI4DL_TEST_DEVICE=cuda torchrun ... -m pytest
# (threads as ranks cannot run backward on a GPU, whose autograd nodes share one thread).
torch.set_default_device(os.environ.get("MPI4DL_TEST_DEVICE", "cpu"))

# The same examples in every run, so that a red test is red for everybody;
# `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("steady")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Modules start from the same weights, whichever tests ran before in this process."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def strips_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images in tests are so small that convolutions would never overlap with their halo."""
    monkeypatch.setattr(convolution, "pays", lambda *arguments: True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its tally to the process that writes the summary."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["exactness"] = dataclasses.astuple(TALLY)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Runs in the process that writes the summary, once for every worker that ends."""
    cases, worst, where = getattr(node, "workeroutput", {}).get("exactness", (0, 0.0, ""))
    if cases:
        TALLY.add(worst, where)
        TALLY.cases += cases - 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.cases:
        terminalreporter.write_line(
            f"exactness: {TALLY.cases} cases against one process in float64, largest relative "
            f"error {TALLY.worst:.1e} ({TALLY.where})"
        )
