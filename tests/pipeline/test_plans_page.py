"""The page about plans: every picture and message is what the line above it gives."""

from __future__ import annotations

import dataclasses
import doctest
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mpi4dl import Plan
from mpi4dl.pipeline import partition
from support.exactness import rand

PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")


def test_the_examples():
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, flags=re.S))
    test = doctest.DocTestParser().get_doctest(examples, {}, "plans.md", None, 0)
    assert len(test.examples) > 10
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_the_u_net_in_stages_is_the_u_net():
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())

    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    image = rand(2, 3, 21, 18).float()
    names: dict[str, Any] = {"F": F, "nn": nn, "torch": torch, "block": block, "image": image}
    exec(example, names | {"Plan": Plan, "partition": partition}, names)
    model, stages = names["model"], [names[which] for which in ("first", "second", "third")]
    assert torch.equal(names["result"], model(image))
    assert len([v for v in names["skips_and_current"] if isinstance(v, torch.Tensor)]) == 3
    assert {key for stage in stages for key in stage.state_dict()} == set(model.state_dict())


def test_every_word_is_explained():
    table = PAGE[PAGE.index("| word |") : PAGE.index("If `spatial_size` is")]
    words = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", table, flags=re.M)))
    assert words == [field.name for field in dataclasses.fields(Plan)]
