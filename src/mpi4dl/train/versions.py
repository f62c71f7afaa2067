"""Which versions of packages are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """None if it is not, or runs from its sources."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
