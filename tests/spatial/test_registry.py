"""docs/operators.md and the rules are the same list, and every name in it exists."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MethodWrapperType, ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
import mpi4dl.spatial
from mpi4dl.spatial import adaptive, dimensions, losses, metadata, pooling, randomness
from mpi4dl.spatial.registry import _NAMESPACES, HANDLERS
from support.exactness import assert_exact, assert_refused, rand

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
PUBLIC = (torch, torch.Tensor, F, torch.linalg, torch.special, torch.autograd)

REFUSING = {
    adaptive.adaptive_max_with_indices,
    dimensions.storage,
    losses.refused,
    metadata.needs_the_whole,
    pooling.max_pool_with_indices,
    randomness.refused,
}
"""Rules that do nothing but say why not, and what to do."""


def sections() -> dict[str, str]:
    _, *parts = re.split(r"^## (.+)\n", PAGE, flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def listed(text: str) -> list[str]:
    """The names in the first column of the tables in `text`."""
    cells = re.findall(r"^\| (.*?) \|", text, flags=re.M)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def accesses(owner: Any, name: str) -> Iterator[Any]:
    """What tiles are asked for under this name: a function, or reading and writing a property."""
    found = getattr(owner, name, None)
    if isinstance(found, property) or inspect.isgetsetdescriptor(found):
        yield from (found.__get__, found.__set__)
    elif callable(found) and not isinstance(found, type):
        yield found


def is_property(access: Any) -> bool:
    """Some properties can be read and not written, or share their name with a function."""
    return isinstance(access, MethodWrapperType)


def functions(name: str) -> list[Any]:
    """`relu`: everything of that name. `torch.autograd.grad` or `Tensor.unfold`: only that."""
    *path, last = name.removeprefix("torch.").split(".")
    owner: Any = torch
    for step in path:
        owner = getattr(owner, step)
    spaces = (owner,) if path else (torch.Tensor,) if name.startswith("__") else PUBLIC
    return [f for space in spaces for f in accesses(space, last)]


def rules(name: str) -> list[Any]:
    return [HANDLERS[f] for f in functions(name) if f in HANDLERS]


def public_names() -> set[str]:
    """Every public name under which a registered function can be called."""
    return {
        name
        for space in PUBLIC
        for name in dir(space)
        if not name.startswith("_") and any(f in HANDLERS for f in accesses(space, name))
    }


# ── the page says what is there ──────────────────────────────────────────────────────────────────

ANSWERED = [n for title, text in sections().items() if title != "Refused" for n in listed(text)]
REFUSED = listed(sections()["Refused"])
WITHOUT = re.findall(r"`([^`]+)`", sections()["Without a rule"])


@pytest.mark.parametrize("name", ANSWERED)
def test_an_operator_in_the_tables_is_answered(name):
    missing = [f for f in functions(name) if f not in HANDLERS and not is_property(f)]
    assert rules(name), f"{name} has no rule"
    assert not missing, f"{name} is also the name of {missing}"
    assert not REFUSING.intersection(rules(name)), f"{name} is always refused"


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_in_the_table_of_refusals_is_refused(name):
    assert rules(name), f"{name} has no rule"
    assert REFUSING.issuperset(rules(name)), f"{name} is answered"


@pytest.mark.parametrize("name", WITHOUT)
def test_an_operator_without_a_rule_is_said_to_have_none(name):
    assert functions(name), f"there is no {name}"
    assert not rules(name), f"{name} has a rule: move it to the tables"


def test_every_public_operator_is_in_the_page():
    said = {name.rpartition(".")[2] for name in (*ANSWERED, *REFUSED)}
    # "Each of them also in place": relu_ is said with relu.
    in_place = {f"{name}_" for name in listed(sections()["Elementwise"])}
    missing = public_names() - said - in_place
    assert not missing, f"docs/operators.md does not mention {sorted(missing)}"


def test_no_operator_is_in_the_page_twice():
    names = [*ANSWERED, *REFUSED, *WITHOUT]
    assert not {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`nn\.(\w+)`", PAGE))))
def test_a_module_in_the_page_exists(name):
    assert issubclass(getattr(nn, name), nn.Module)


def test_the_messages_in_the_page_are_those_of_the_errors():
    folder = Path(mpi4dl.spatial.__file__).parent
    # Strings that are written in pieces, as one.
    sources = " ".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    sources = re.sub(r'"\s+f?"', "", sources)
    messages = re.findall(r"^\| “(.*?)” \|", PAGE, flags=re.M)
    pieces = [piece.strip() for message in messages for piece in message.split("…")]
    assert len(messages) > 5
    assert not [piece for piece in pieces if piece not in sources]


LIMITS = {
    "there is no rule": lambda x: torch.fft.fft2(x),
    "looks along dimension 2, which is split": lambda x: x.argmax(2),
    "several dimensions at once": lambda x: x.prod(),
    "channels are split": lambda x: F.conv2d(x.transpose(1, 2), rand(3, 8, 1, 1)),
    "flattened into one": lambda x: F.max_pool1d(x.flatten(2), 2),
    "every pixel would meet": lambda x: x.flatten(2).transpose(1, 2) @ x.flatten(2),
    "sums over a dimension that is split": lambda x: x @ rand(10, 3),
    "taken apart or mixed": lambda x: x.reshape(2, 4, 10, 8),
    "Call .full_tensor() first": lambda x: float(x),
    "the index is a tile": lambda x: x[x > 0],
    "cannot be indexed by": lambda x: x[:, :, [0, 1]],
    "in place by a tile": lambda x: torch.zeros(2, 4, 8, 10).double().add_(x.detach()),
    "out= cannot be": lambda x: torch.add(x.detach(), 1, out=torch.zeros(1).double()),
    "indices into the whole image": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "rounds in a way": lambda x: F.interpolate(x.byte(), scale_factor=2, mode="bilinear"),
    "a view of the bytes": lambda x: x.view(torch.int64),
    "Reduce the dimension with keepdim": lambda x: x[:, :, :1].expand(-1, -1, 5, -1),
    "Name the dimension": lambda x: x.repeat_interleave(2),
    "a list of its rows": lambda x: x.unbind(2),
    "Do this before flattening": lambda x: x.flatten(2)[..., 1:],
    "broadcast each other": lambda x: x[:, :, :1] + x[..., :1],
    "finds positions": lambda x: torch.where(x > 0),
    "matrix norms": lambda x: torch.linalg.norm(x, 2, dim=(2, 3)),
    "its operands lie differently": lambda x: x.quantile(torch.tensor([0.1, 0.9]).double(), 1),
    "Pass num_classes": lambda x: F.one_hot(x.abs().long()),
    "must be ordinary tensors and the input": lambda x: F.conv2d(x, x),
    "it has no batch dimension": lambda x: F.nll_loss(x[0, 0, 0], torch.tensor(1)),
    "a generator of its own": lambda x: torch.rand_like(x, generator=torch.Generator()),
    "cannot be differentiated": lambda x: torch.autograd.grad(x.mean(), x, create_graph=True),
    "torch.vmap": lambda x: torch.vmap(torch.sin)(x),
}


@pytest.mark.parametrize("message", LIMITS)
def test_what_the_page_says_is_refused_is_refused(message):
    assert_refused(LIMITS[message], rand(2, 4, 8, 10), match=re.escape(message))


# ── the page's examples run ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def examples() -> Iterator[dict[str, Any]]:
    before = dict(HANDLERS)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", sections()["Adding one"], flags=re.S):
        exec(block, names)
    yield names
    HANDLERS.clear()
    HANDLERS.update(before)


@pytest.mark.parametrize("grid", [(2, 2), (1, 3), (9, 1)])
def test_the_examples_of_the_page_are_exact(examples, grid):
    x, y = rand(2, 3, 7, 5), rand(2, 3, 7, 5, seed=1)
    assert_exact(torch.special.i1e, x, grid=grid)
    assert_exact(lambda x, y: torch.linalg.vecdot(x, y, dim=1), x, y, grid=grid)
    assert_exact(lambda x, y: torch.linalg.vecdot(x, y, dim=3), x, y, grid=grid)
    assert_exact(lambda x, y: torch.linalg.cross(x, y, dim=1), x, y, grid=grid)


def test_the_example_that_refuses_does_so(examples):
    x = rand(2, 4, 3, 5)
    assert_refused(
        lambda x: torch.linalg.cross(x, x, dim=2), x, grid=(2, 1), match="cross along dimension 2"
    )


# ── the lists of names in the sources ────────────────────────────────────────────────────────────


def modules() -> list[ModuleType]:
    return [m for name, m in sorted(sys.modules.items()) if name.startswith("mpi4dl.spatial.")]


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, save what f-strings make of other names."""
    if not isinstance(node, ast.JoinedStr):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from parts(child)


def asked_for(module: ModuleType) -> Iterator[str]:
    """The names that a module hands to `named` and its kin, directly or in a list of its own."""
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if call.func.id not in ("named", "spatial_op_named", "_properties"):
            continue
        of_names = call.args[:1] if call.func.id == "_properties" else call.args
        for node in (part for argument in of_names for part in parts(argument)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from node.value.split()
            elif isinstance(node, ast.Name) and node.id.startswith("_"):
                found = getattr(module, node.id)
                yield from [found] if isinstance(found, str) else found


def test_every_name_in_the_lists_is_one_of_pytorch():
    """`named` skips what the installed version lacks, so a typo would never show."""

    def exists(name: str) -> bool:
        return any(hasattr(s, n) for s in _NAMESPACES for n in (name, f"__{name}__"))

    asked = {name for module in modules() for name in asked_for(module)}
    assert {"relu", "iadd", "max_pool2d", "is_meta", "gather"} <= asked, "the lists were not found"
    assert not {name for name in asked if not exists(name)}


def test_only_functions_are_registered():
    assert not [f for f in HANDLERS if not callable(f) or isinstance(f, type)]
