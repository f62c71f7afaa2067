"""The house rules: who may import whom, how large a room may be, what the public surface is."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mpi4dl

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mpi4dl"

FLOORS = (
    *("errors", "geometry", "schedule", "comm", "spatial", "pipeline", "planner", "data", "train"),
    *("mpi4dl", "cli", "__main__"),
)
"""Bottom-up: a module imports from its own floor and from those before it. `mpi4dl`, the public
names, is the roof, and the command stands on it."""

PURE = ("errors", "geometry", "schedule")
"""Plain Python: what they say can be asked, tested and printed without a tensor or a process."""

APART = ("models",)
"""Imports nothing of the rest: plain models that know nothing of tiles."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@lru_cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def named_by(module: str, statement: ast.stmt) -> Iterator[str]:
    """The absolute names that one import statement asks for, most precise first."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    if isinstance(statement, ast.ImportFrom):
        package = MODULES[module].name == "__init__.py"
        here = module.split(".") + ([""] if package else [])
        base = here[: len(here) - statement.level] if statement.level else []
        name = ".".join(base + ([statement.module] if statement.module else []))
        for alias in statement.names:
            full = f"{name}.{alias.name}"
            yield full if full in MODULES or name.split(".")[0] != "mpi4dl" else name


def imports(module: str) -> set[str]:
    """Every module that this one names in an import, wherever in the file it stands."""
    statements = [n for n in ast.walk(tree(module)) if isinstance(n, ast.stmt)]
    return {name for s in statements for name in named_by(module, s)} - {module}


def floor(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def functions() -> Iterator[tuple[int, str]]:
    """Length in lines and place of every function."""
    for module, path in MODULES.items():
        for node in ast.walk(tree(module)):
            if isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                yield length, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


# ── imports ──────────────────────────────────────────────────────────────────────────────────────


def test_every_module_stands_on_a_floor():
    unplaced = {floor(module) for module in MODULES} - {*FLOORS, *APART}
    assert not unplaced, f"give {unplaced} a place in FLOORS, above everything it imports"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_own_floor_and_those_below(module):
    own = floor(module)
    below = (own,) if own in APART else FLOORS[: FLOORS.index(own) + 1]
    if own == "mpi4dl":
        below = (*FLOORS, *APART)
    if own == "train":
        below = (*below, *APART)  # commands train the models by name
    wrong = {m for m in imports(module) if floor(m) not in below and m.split(".")[0] == "mpi4dl"}
    assert not wrong, f"{module} reaches up to {wrong}"


@pytest.mark.parametrize("module", [m for m in MODULES if floor(m) in PURE])
def test_the_floors_of_pure_data_import_no_torch(module):
    assert not {m for m in imports(module) if m.split(".")[0] in ("torch", "numpy")}


def test_models_know_nothing_of_processes():
    needs = {name for module in MODULES if floor(module) == "models" for name in imports(module)}
    assert not {name for name in needs if f"{name}.".startswith("torch.distributed.")}


def test_there_are_no_import_cycles():
    graph = {module: imports(module) & set(MODULES) for module in MODULES}
    # `from . import x` names the package, which is not a dependency on what the package imports.
    for module, needs in graph.items():
        needs -= {p for p in needs if module.startswith(f"{p}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " → ".join(error.args[1]))


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


def test_no_module_is_longer_than_400_lines():
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in MODULES.values()}
    assert not {path: n for path, n in lines.items() if n > 400}


def test_no_function_is_longer_than_60_lines():
    assert not [where for length, where in functions() if length > 60]


def test_at_most_a_tenth_of_the_functions_is_longer_than_40_lines():
    everything = list(functions())
    long = [where for length, where in everything if length > 40]
    assert len(long) <= 0.1 * len(everything), long


# ── the public surface ───────────────────────────────────────────────────────────────────────────


def test_public_names_are_listed_once_and_in_order():
    assert len(mpi4dl.__all__) == len(set(mpi4dl.__all__))
    assert sorted(mpi4dl.__all__) == list(mpi4dl.__all__)


def test_every_public_name_is_listed():
    defined = {
        name
        for name, thing in vars(mpi4dl).items()
        if not name.startswith("_") and not inspect.ismodule(thing)
    }
    assert defined == set(mpi4dl.__all__)


@pytest.mark.parametrize("name", mpi4dl.__all__)
def test_every_public_name_exists_and_says_what_it_is(name):
    thing = getattr(mpi4dl, name)
    written = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert written, f"mpi4dl.{name} has no docstring"
    assert not written.startswith(f"{name}("), f"mpi4dl.{name} has only a generated docstring"


# ── what must not be written down ────────────────────────────────────────────────────────────────

NOT_OURS = {"__pycache__", "build", "dist"}

MACHINE_PATH = re.compile(
    r"(?<![\w./:-])/(?:home|root|work|Users|opt|mnt|scratch)/\w|\b[A-Z]:\\\w",
)
REGISTRY = re.compile(
    r"\bpypi\.org|pythonhosted\.org|download\.pytorch\.org|\banaconda\.(?:org|com)"
    r"|--(?:extra-)?index-url|--(?:find)-links"
)


def project_files() -> list[Path]:
    """What git tracks or would track; without git, everything neither hidden nor built."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if listed.returncode == 0:
            return [ROOT / name for name in listed.stdout.split("\0") if name]
    return [
        path
        for path in ROOT.rglob("*")
        if not any(
            part in NOT_OURS or part.endswith(".egg-info") or part.startswith(".")
            for part in path.relative_to(ROOT).parts
        )
    ]


def text_files() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        if path.is_file():
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a picture


def test_the_files_of_the_project_are_found():
    assert {ROOT / "dev", ROOT / "pyproject.toml", Path(__file__)} <= set(project_files())


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry"])
def test_no_file_names_a_machine_or_a_package_registry(pattern):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert not found
