"""What the pages about checkpoints and failures show, runs."""

from __future__ import annotations

import copy
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl import Plan
from mpi4dl.train.checkpoints import Checkpoints
from mpi4dl.train.interruption import REQUEUE
from support.ranks import UNDER_TORCHRUN
from train.test_checkpoints import BATCHES, NETWORK, trainer_of

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="the examples are for one process")


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), flags=re.S)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the pages take for granted, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return {
        "mpi4dl": mpi4dl,
        "torch": torch,
        "F": F,
        "sys": sys,
        "trainer": trainer_of(Plan(parts=2)),
        "model": copy.deepcopy(NETWORK),
        "plan": Plan(parts=2),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batch": lambda step: BATCHES[step % len(BATCHES)],
        "images": BATCHES[0][0],
        "labels": BATCHES[0][1],
    }


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_page_of_checkpoints(names, tmp_path):
    first, companions, pytorchs, weights = examples("checkpoints.md")
    exec(first, names)
    assert names["checkpoints"].steps() == [10, 15, 20]
    names["checkpoint"] = tmp_path / "run" / "checkpoints" / "step-00000020"
    exec(pytorchs, names)
    assert torch.equal(names["state"]["model.0.weight"], names["trainer"].state_dict()["0.weight"])
    exec(weights, names)
    assert not names["left"]
    again = {**names, "trainer": trainer_of(Plan(parts=2))}
    again["checkpoints"] = Checkpoints("other")
    exec(companions, again)
    exec(companions, {**again, "trainer": trainer_of(Plan(parts=2))})


def test_the_page_of_failures(names):
    stopping, numbers = examples("failures.md")
    names |= {"progress": {"next": 0}, "checkpoints": Checkpoints("run")}
    names["trainer"].request_stop()
    with pytest.raises(SystemExit) as ended:
        exec(stopping, names)
    assert ended.value.code == REQUEUE
    assert names["checkpoints"].steps() == [1]
    names["images"] = names["images"] / 0
    exec(numbers, names)
    assert names["trainer"].last_nonfinite.startswith("the input of 0 (Conv2d)")
