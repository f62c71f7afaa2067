"""What the pages show runs, and where they point there is something."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
import mpi4dl.models
from mpi4dl.spatial.registry import HANDLERS
from support.exactness import assert_exact, rand
from support.ranks import UNDER_TORCHRUN, run_ranks

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="the examples are for four ranks")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def examples(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


@pytest.fixture
def registered() -> Iterator[None]:
    """Forgets the rules that an example registers."""
    before = dict(HANDLERS)
    yield
    HANDLERS.clear()
    HANDLERS.update(before)


@pytest.mark.parametrize("text", [read("README.md"), mpi4dl.__doc__], ids=["README", "docstring"])
def test_the_first_example_gives_the_gradients_of_one_process(text):
    example = (examples(text) or [text[text.index("mpi4dl.init") :]])[0]
    image = rand(2, 3, 13, 18)
    labels = torch.randint(0, 4, (2, 13, 18), generator=torch.Generator().manual_seed(0))
    reference = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).double()
    expected = copy.deepcopy(reference)
    loss = F.cross_entropy(expected(image), labels)
    loss.backward()

    def program(comm):
        model = copy.deepcopy(reference)
        names = {"image": image, "labels": labels, "model": model, "mpi4dl": mpi4dl, "torch": torch}
        exec(example, names)
        torch.testing.assert_close(names["loss"], loss, rtol=1e-12, atol=0)
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-14)

    run_ranks(4, program)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


def test_the_rule_for_an_autograd_function(registered):
    example, _ = examples(read("docs/sharp-bits.md"))
    exec(example, {"mpi4dl": mpi4dl, "MySwish": Swish})
    assert_exact(Swish.apply, rand(2, 3, 7, 5), grid=(2, 3))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, while it compiles
def test_a_block_that_is_compiled():
    _, example = examples(read("docs/sharp-bits.md"))
    names: dict[str, Any] = {"mpi4dl": mpi4dl, "torch": torch, "nn": nn}
    exec(example, names)
    block = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU()).double()
    compiled = names["Compiled"](block, backend="aot_eager")

    def program(comm):
        tile = mpi4dl.shard(rand(1, 3, 9, 8))
        torch.testing.assert_close(compiled(tile).to_local(), block(tile).to_local())

    run_ranks(2, program)


def test_the_rule_and_the_test_that_contributors_are_shown(registered):
    rule, test = examples(read("CONTRIBUTING.md"))
    names: dict[str, Any] = {
        "mpi4dl": mpi4dl,
        "pytest": pytest,
        "torch": torch,
        "rand": rand,
        "assert_exact": assert_exact,
    }
    exec(rule, names)
    before = set(names)
    exec(test, names)
    (name,) = set(names) - before
    (grids,) = names[name].pytestmark
    for grid in grids.args[1]:
        names[name](grid)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            missing.append(link)
    assert not missing


COUNTED = re.findall(r"^\| `(.+)` \| (\d+) \| ([\d,]+) \|$", read("docs/models.md"), flags=re.M)


@pytest.mark.parametrize(("call", "layers", "parameters"), COUNTED)
def test_the_page_of_models_counts_right(call, layers, parameters):
    with torch.device("meta"):
        model = eval(call, vars(mpi4dl.models))
    assert len(model) == int(layers)
    assert f"{sum(p.numel() for p in model.parameters()):,}" == parameters


def test_the_page_of_models_names_all_of_them():
    assert {call.partition("(")[0] for call, _, _ in COUNTED} == set(mpi4dl.models.MODELS)
    (example,) = examples(read("docs/models.md"))
    with torch.device("meta"):
        exec(example, {})
