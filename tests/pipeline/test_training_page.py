"""What the pages show of training runs as it stands there, on as many ranks as it says."""

from __future__ import annotations

import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl.models import resnet_v2
from support.ranks import run_ranks

ROOT = Path(__file__).parents[2]


def example(page: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
    return next(block for block in blocks if "mpi4dl.Trainer(" in block)


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_the_example_trains(page, monkeypatch):
    batches = [(torch.randn(4, 3, 24, 24), torch.randint(0, 10, (4,))) for _ in range(2)]
    model = resnet_v2(29)
    # Ranks that are threads share their random numbers, and would start from other weights.
    monkeypatch.setattr("mpi4dl.models.resnet_v2", lambda depth: copy.deepcopy(model))
    before = copy.deepcopy(model.state_dict())

    def program(comm):
        names = {"mpi4dl": mpi4dl, "F": F, "partial": partial, "SGD": torch.optim.SGD}
        names |= {"batches": batches, "model": copy.deepcopy(model)}
        exec(example(page), names)
        return names["loss"], names["trainer"].state_dict()

    (loss, state), *others = run_ranks(7, program)
    assert loss.isfinite()
    assert all(torch.equal(loss, other) for other, _ in others)
    assert state.keys() == before.keys()
    assert not torch.equal(state["head.4.weight"], before["head.4.weight"])
