"""From a file and the words of a command line to a configuration in which every value is right.

What is wrong is one `UsageError`, before any rank starts: the file, the field, and what would do.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ...data import View
from ...errors import DataError, PlanError, UsageError
from ...pipeline import Plan
from .sections import Configuration


def read(file: str | Path, words: Iterable[str] = ()) -> Configuration:
    """A configuration file, with `section.field=value` in place of what it says."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}") from error
    return configuration(parsed(text, str(path)), words, str(path))


def configuration(
    values: Mapping[str, Any], words: Iterable[str] = (), where: str = "configuration"
) -> Configuration:
    """The same of a nesting of dictionaries."""
    tree = _copied(values)
    for word in words:
        _override(tree, word)
    try:
        made: Configuration = _section(Configuration, tree, "")
    except (UsageError, PlanError) as error:
        raise UsageError(f"{where}: {error}") from error
    return made


def parsed(text: str, where: str) -> dict[str, Any]:
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line}: {getattr(error, 'problem', None) or error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{where} is no configuration: it must have sections such as `model:`")
    return values


def written(made: Configuration) -> str:
    """As a file that says all of it, defaults included, and can be read again."""
    return yaml.safe_dump(_plain(asdict(made)), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """What is said twice is a mistake."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is said twice", node.value[place][0].start_mark
                )
        return super().construct_mapping(node, deep)


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _override(tree: dict[str, Any], word: str) -> None:
    path, equals, text = word.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise UsageError(f"{word!r} sets nothing: write section.field=value")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{word!r}: {getattr(error, 'problem', error)}") from error
    for name in names[:-1]:
        inner = tree.get(name)
        if inner is None:
            inner = tree[name] = {}
        if not isinstance(inner, dict):
            raise UsageError(f"{word!r}: {name} is no section")
        tree = inner
    tree[names[-1]] = value


# ── sections ─────────────────────────────────────────────────────────────────────────────────────


def _section(kind: Any, values: Any, path: str) -> Any:
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise UsageError(f"{path} is {values!r}; it must be a section")
    known = {field.name: field for field in fields(kind)}
    for name in values:
        if name not in known:
            raise UsageError(unknown(_under(path, str(name)), str(name), known))
    if kind in (Plan, View):
        return _called(kind, values, path)
    hints = typing.get_type_hints(kind)
    made = {}
    for name, field in known.items():
        if name in values or is_dataclass(hints[name]):
            made[name] = _field(field, hints[name], values.get(name), _under(path, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{_under(path, name)} is missing: {field.metadata['text']}")
    return kind(**made)


def _called(kind: Any, values: dict[str, Any], path: str) -> Any:
    """What checks its own fields."""
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return kind(**lists)
    except (PlanError, DataError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _field(field: Field[Any], hint: Any, value: Any, path: str) -> Any:
    if is_dataclass(hint):
        return _section(hint, value, path)
    value = _converted(value, hint, path)
    choices, least = field.metadata["choices"], field.metadata["least"]
    if choices and value not in choices:
        raise UsageError(f"{path} is {value!r}; it must be one of {', '.join(choices)}")
    if least is not None and value is not None and not value >= least:
        raise UsageError(f"{path} is {value}; it must be at least {least}")
    return value


def unknown(path: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that there is not."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"there is no {path}; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    )


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ── values ───────────────────────────────────────────────────────────────────────────────────────


def _converted(value: Any, hint: Any, path: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return None if value is None else _converted(value, kinds[0], path)
    read = _READ[typing.get_origin(hint) or hint]
    found = read(value)
    if found is None:
        raise UsageError(
            f"{path} is {value!r}; it must be {_CALLED[typing.get_origin(hint) or hint]}"
        )
    if typing.get_args(hint) == (str, ...) and not all(isinstance(one, str) for one in found):
        raise UsageError(f"{path} is {value!r}; it must be a list of words")
    return found


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    """YAML reads 1e-3 as a word, for it has no point."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _listed(value: Any) -> tuple[Any, ...] | None:
    if isinstance(value, (str, dict)):
        return (value,)
    return tuple(value) if isinstance(value, (list, tuple)) else None


def _named(value: Any) -> dict[str, Any] | None:
    if value is None:
        return {}
    alike = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    return value if alike else None


_READ: dict[Any, Any] = {
    int: _integer,
    float: _number,
    str: _word,
    bool: _switch,
    tuple: _listed,
    dict: _named,
}
_CALLED: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a word",
    bool: "true or false",
    tuple: "a list",
    dict: "names with their values",
}
