"""The folder: names, what is complete, what goes.

step-00000120/             complete: it was renamed to this when all of it was on the disk
.step-00000140.5f3a/       being written, or left behind by a run that has ended
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ...errors import CheckpointError
from .storage import INDEX, synchronized

_NAME = re.compile(r"step-(\d+)(?:\.\d+)?")
_UNFINISHED = ".step-*.*"


def complete(folder: Path) -> dict[int, Path]:
    """By step, the one that was written last at the end: of a run that went back, the new ones."""
    found: list[tuple[int, int, Path]] = []
    for path in folder.glob("step-*"):
        match = _NAME.fullmatch(path.name)
        if match and (path / INDEX).is_file():
            found.append(((path / INDEX).stat().st_mtime_ns, int(match[1]), path))
    latest: dict[int, Path] = {}
    for _, step, path in sorted(found):
        latest.pop(step, None)
        latest[step] = path
    return latest


def chosen(folder: Path, step: int | None) -> Path | None:
    """That of a step, or the last; None if there is none at all."""
    found = complete(folder)
    if step is not None and step not in found:
        there = ", ".join(map(str, found)) or "none"
        raise CheckpointError(
            f"there is no checkpoint of step {step} in {folder}: there are {there}"
        )
    if not found:
        return None
    return found[step] if step is not None else list(found.values())[-1]


def name_of(step: int) -> str:
    return f"step-{step:08}"


def unfinished(folder: Path, step: int, token: str) -> Path:
    return folder / f".{name_of(step)}.{token}"


def begin(beginning: Path) -> None:
    """Room for a new one; what earlier runs left unfinished goes."""
    try:
        beginning.parent.mkdir(parents=True, exist_ok=True)
        for left in beginning.parent.glob(_UNFINISHED):
            shutil.rmtree(left, ignore_errors=True)
        beginning.mkdir()
    except OSError as error:
        raise CheckpointError(f"nothing can be written to {beginning.parent}: {error}") from error


def complete_it(beginning: Path, step: int, keep: int) -> None:
    """From one moment to the next it is there, whole; then older ones go."""
    folder = beginning.parent
    target, again = folder / name_of(step), 1
    while target.exists():  # saved twice, or by a run that went back to an earlier step
        again += 1
        target = folder / f"{name_of(step)}.{again}"
    synchronized(beginning)
    beginning.rename(target)
    synchronized(folder)
    stay = set(list(complete(folder).values())[-keep:])
    for old in folder.glob("step-*"):
        if old not in stay:
            _remove(old)


def _remove(checkpoint: Path) -> None:
    """Its name goes first: half of one must not look like one."""
    going = checkpoint.with_name(f".{checkpoint.name}.old")
    checkpoint.rename(going)
    shutil.rmtree(going, ignore_errors=True)
