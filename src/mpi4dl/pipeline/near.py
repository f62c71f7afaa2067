"""What to change in a plan so that it fits another number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from ..errors import PlanError
from .ranks import mesh_of, placement_of
from .settings import Settings

MOST = 256
"""Larger values are not tried: nobody waits long for an error message."""


def near(plan: Settings, ranks: int) -> tuple[str, ...]:
    """Settings that differ in one number and need so many ranks: `("replicas 2", …)`."""
    return tuple(islice(_fitting(plan, ranks), 3))


def _fitting(plan: Settings, ranks: int) -> Iterator[str]:
    for name in ("replicas", "local_dp", "num_spatial_parts", "split_size", "spatial_size"):
        if isinstance(getattr(plan, name), tuple):
            continue
        found = (
            value for value in range(1, min(ranks, MOST) + 1) if _fits(plan, name, value, ranks)
        )
        yield from (f"{name} {value}" for value in islice(found, 1))


def _fits(plan: Settings, name: str, value: int, ranks: int) -> bool:
    try:
        change: dict[str, Any] = {name: value}
        other = replace(plan, **change)
    except PlanError:
        return False
    return mesh_of(other, placement_of(other)).size == ranks
