"""What a run writes down while it goes: lines of JSON, and what TensorBoard shows. Rank 0 does."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ...errors import UsageError
from .sections import Configuration

LOG, CONFIGURATION, TRACE = "log.jsonl", "config.yaml", "trace.json"
THUMBNAIL, PICTURES = "thumbnail.png", "pictures.png"
"""Files of a run's folder."""


class Records(Protocol):
    def write(self, kind: str, step: int, facts: Mapping[str, Any]) -> None: ...
    def pictures(self, step: int, named: Mapping[str, Tensor]) -> None: ...
    def close(self) -> None: ...


class Lines:
    """A line of JSON for everything that happens: `{"kind": "step", "step": 3, "loss": …}`."""

    def __init__(self, folder: Path, done: int = 0) -> None:
        """Of a run that goes on after `done` steps; what was written of later ones is forgotten."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / LOG
        before = [line for line in read_log(folder) if line["step"] <= done] if done else []
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in before)
        file.write_text(text, encoding="utf-8")
        self._file = file.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        line = {"kind": kind, "step": step, "time": time.time(), **facts}
        self._file.write(json.dumps(_finite(line), ensure_ascii=False) + "\n")
        self._file.flush()

    def pictures(self, step: int, named: Mapping[str, Tensor]) -> None:
        return None

    def close(self) -> None:
        self._file.close()


class Board:
    """Scalars and images for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def write(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if kind in ("step", "evaluation") and isinstance(value, float):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def pictures(self, step: int, named: Mapping[str, Tensor]) -> None:
        for name, picture in named.items():
            self._writer.add_image(name, picture, step)

    def close(self) -> None:
        self._writer.close()


class Several:
    def __init__(self, all_of_them: Sequence[Records]) -> None:
        self._all = all_of_them

    def write(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        for one in self._all:
            one.write(kind, step, facts)

    def pictures(self, step: int, named: Mapping[str, Tensor]) -> None:
        for one in self._all:
            one.pictures(step, named)

    def close(self) -> None:
        for one in self._all:
            one.close()


def records(configuration: Configuration, rank: int, done: int = 0) -> Records:
    """Of other ranks than the first: nothing."""
    folder = Path(configuration.folder)
    if rank:
        return Several([])
    lines = Lines(folder, done)
    return Several([lines, Board(folder)] if configuration.logging.tensorboard else [lines])


def check_logging(configuration: Configuration) -> None:
    if configuration.logging.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "logging.tensorboard is on, and tensorboard is not installed: pip install tensorboard"
        )
    folder = Path(configuration.folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"folder is {folder}, which is a file")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All lines; one that was cut off by a crash is left out."""
    lines: list[dict[str, Any]] = []
    if not (folder / LOG).exists():
        return lines
    for line in (folder / LOG).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def _finite(value: Any) -> Any:
    """JSON has no words for what is no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
