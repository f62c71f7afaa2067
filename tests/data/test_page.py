"""docs/data.md: what it shows runs as it stands there, and what it lists is there."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch

import mpi4dl.data
from mpi4dl.data import View, opening
from mpi4dl.models import unet
from support.ranks import UNDER_TORCHRUN, run_ranks

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


@pytest.mark.skipif(UNDER_TORCHRUN, reason="the examples are for four ranks")
def test_the_examples_train_on_four_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    slides, training, views, going_on = EXAMPLES
    exec(slides, {})
    model = unet(num_classes=2, base=4, depth=2)
    # Ranks that are threads share their random numbers, and would start from other weights.
    monkeypatch.setattr("mpi4dl.models.unet", lambda **_: copy.deepcopy(model))

    def program(comm):
        names: dict = {"View": View}
        exec(training, names)
        reading = names["loader"].reading()
        exec(going_on, names)
        exec(views, names)
        names["loader"].close()
        return names["loss"], reading

    results = run_ranks(4, program)
    losses = [loss for loss, _ in results]
    assert losses[0].isfinite()
    assert all(torch.equal(loss, losses[0]) for loss in losses)
    quarter = 352 * 352 * (3 + 1)
    assert [reading.bytes_used for _, reading in results] == [4 * quarter] * 4


def test_every_format_of_the_page_is_read_and_every_reader_is_on_it():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, flags=re.M)
    readers = {name: text for name, text in rows if name in opening._READERS}
    assert set(readers) == set(opening._READERS)
    for name, text in readers.items():
        for suffix in re.findall(r"`(\.[\w.]+)`", text):
            last = "." + suffix.rpartition(".")[2]
            assert opening._BY_SUFFIX[last] == name


def test_what_is_public_is_on_the_page_or_explains_itself():
    for name in mpi4dl.data.__all__:
        assert name in PAGE or getattr(mpi4dl.data, name).__doc__, name
    assert sorted(mpi4dl.data.__all__) == mpi4dl.data.__all__
