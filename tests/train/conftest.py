"""Commands without the ranks that they would start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpi4dl.comm.launchers import LAUNCHERS
from mpi4dl.train import KINDS, bench, benchmark, flags
from mpi4dl.train.arguments import Parser
from mpi4dl.train.configuration import Configuration, configured


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in LAUNCHERS:
        for name in (launcher.rank, launcher.size, launcher.local_rank, launcher.local_size):
            monkeypatch.delenv(name, raising=False)
    for name in ("MASTER_ADDR", "MASTER_PORT", "MPI4DL_RANKS", "MPI4DL_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Exit code and what is printed, of a command that must not get as far as to start anything."""

    def started(*_: Any) -> int:
        pytest.fail("ranks were started")

    def answer(kind: str, model: str, line: str) -> tuple[int, str]:
        monkeypatch.setattr(benchmark, "_start_ranks", started)
        monkeypatch.setattr(benchmark, "_run", started)
        code = bench(kind, model, line.split(), "bench")
        printed = capsys.readouterr()
        assert printed.out == ""
        return code, printed.err

    return answer


def decided(kind: str, model: str, line: str, ranks: int | None = None) -> Configuration:
    """What a command line comes to."""
    options = flags(KINDS[kind], Parser(prog="bench")).parse_args(line.split())
    return configured(KINDS[kind], model, options, ranks)
