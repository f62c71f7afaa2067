"""What all readers need: their library, and words for what goes wrong."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import DamagedFile, DataError


def library(module: str, group: str, purpose: str) -> Any:
    """An optional package; it is an error that says how to install it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or module).partition(".")[0]
        raise DataError(
            f"{purpose} with {missing}, which is not installed: pip install 'mpi4dl[{group}]'"
        ) from None


@contextmanager
def blamed_on(name: str, doing: str) -> Iterator[None]:
    """Whatever a library raises about a file becomes a `DamagedFile` with the file's name."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        said = str(error).strip() or type(error).__name__
        raise DamagedFile(f"{name} cannot be {doing}: {said}") from error
