"""CIFAR-10 and CIFAR-100 from local files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .dataset import Dataset
from .view import View


def cifar(
    path: str | Path, classes: Literal[10, 100] = 10, train: bool = True, view: View | None = None
) -> Dataset:
    """CIFAR-10 or CIFAR-100, in their binary version or in the one for Python (which is unpickled
    without calling anything that is not NumPy's)."""
    raise NotImplementedError
