"""All that can be configured, as tables for a page: `python -m mpi4dl.train.runs.reference`."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from ...data import View
from ...pipeline import Plan
from .sections import Configuration

_ELSEWHERE = {Plan: "[plans](plans.md)", View: "[`View`](data.md)"}


def reference() -> str:
    """A table for each section, in Markdown."""
    return "\n\n".join(_tables(Configuration, ""))


def _tables(kind: Any, path: str) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    rows = [f"### `{path or 'At the top'}`".replace("`At the top`", "At the top"), ""]
    rows += ["| field | if nothing is said | means |", "|---|---|---|"]
    sections = []
    for field in fields(kind):
        hint = hints[field.name]
        name = f"{path}.{field.name}" if path else field.name
        if not is_dataclass(hint):
            rows.append(f"| `{field.name}` | {_default(field)} | {_means(field)} |")
        elif hint in _ELSEWHERE:
            known = ", ".join(f"`{one.name}`" for one in fields(hint))
            rows.append(f"| `{field.name}` | | the words of {_ELSEWHERE[hint]}: {known} |")
        else:
            sections.append((hint, name))
    yield "\n".join(rows)
    for hint, name in sections:
        yield from _tables(hint, name)


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "" if field.default_factory is not MISSING else "must be said"
    if field.default is None or field.default == ():
        return ""
    words = {True: "true", False: "false"}
    return f"`{words[field.default] if isinstance(field.default, bool) else field.default}`"


def _means(field: Field[Any]) -> str:
    text, choices = field.metadata["text"], field.metadata["choices"]
    among = f": {', '.join(f'`{one}`' for one in choices)}" if choices else ""
    return f"{text}{among}".replace("|", "\\|")


if __name__ == "__main__":
    print(reference())
