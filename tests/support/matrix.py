"""A few plans that hold every pair of choices: most mistakes need two things to meet.

`matrix.txt` beside this file has one plan in a line. It was written by this file, run as a
program, and can be again after a choice was added.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

from mpi4dl import Plan, PlanError
from mpi4dl.schedule import SCHEDULES

TABLE = Path(__file__).with_name("matrix.txt")
MOST_RANKS = 8

SPATIAL: dict[str, dict[str, Any]] = {
    "none": {},
    "2-vertical": {"num_spatial_parts": 2, "slice_method": "vertical"},
    "3-horizontal": {"num_spatial_parts": 3, "slice_method": "horizontal"},
    "4-square": {"num_spatial_parts": 4},
    "2x3": {"num_spatial_parts": 6, "slice_method": "2x3"},
    "2+2": {"num_spatial_parts": 2, "spatial_size": 2, "slice_method": ("vertical", "square")},
    "4+2": {"num_spatial_parts": (4, 2), "slice_method": ("square", "horizontal")},
    "2+4": {"num_spatial_parts": (2, 4), "slice_method": ("vertical", "horizontal")},
    "4+4": {"num_spatial_parts": (4, 4), "slice_method": ("vertical", "square")},
}

HALOS: dict[str, dict[str, Any]] = {
    "single": {},
    "fused-1": {"halo_d2": True},
    "fused-2": {"halo_d2": True, "fused_layers": 2},
}

FACTORS: dict[str, tuple[str, ...]] = {
    "model": ("plain", "branches", "skips", "unet"),
    "schedule": tuple(SCHEDULES),
    "spatial": tuple(SPATIAL),
    "split_size": ("1", "2", "3", "4"),
    "parts": ("1", "2", "3"),
    "times": ("1", "2", "3", "4"),
    "local_dp": ("1", "2", "4"),
    "replicas": ("1", "2"),
    "halos": tuple(HALOS),
    "again": ("0", "1", "2"),  # layers whose activations are computed again at once
    "more": ("0", "1", "2"),  # samples than micro-batches
    "optimizer": ("sgd", "adam"),
}

Chosen = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]

_NUMBERS = ("split_size", "parts", "times", "local_dp", "replicas")
_DRAWS = 1000
_MOST_MICRO_BATCHES = 8
_KEPT = 20


def combinations_of_the_table() -> list[Chosen]:
    header, *rows = (line.split() for line in TABLE.read_text().splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def plan_of(chosen: Chosen) -> Plan | None:
    """None if it is refused, or too large for a test."""
    return _plan(
        tuple(chosen[name] for name in ("schedule", "spatial", "halos", "again")),
        *(int(chosen[name]) for name in _NUMBERS),
    )


@cache
def _plan(words: tuple[str, ...], *numbers: int) -> Plan | None:
    schedule, spatial, halos, again = words
    settings = {**dict(zip(_NUMBERS, numbers, strict=True)), **SPATIAL[spatial], **HALOS[halos]}
    try:
        plan = Plan(schedule=schedule, checkpoint_activations=int(again), **settings)
    except PlanError:
        return None
    small = plan.world_size <= MOST_RANKS and plan.micro_batches <= _MOST_MICRO_BATCHES
    return plan if small else None


def pairs_of(chosen: Chosen) -> Iterator[Pair]:
    return combinations([(name, chosen[name]) for name in FACTORS], 2)


def all_pairs() -> list[Pair]:
    return [
        ((one, a), (other, b))
        for one, other in combinations(FACTORS, 2)
        for a, b in product(FACTORS[one], FACTORS[other])
    ]


def drawn_with(pair: Pair, draw: random.Random, draws: int = _DRAWS) -> Iterator[Chosen]:
    """Some combinations with these two choices whose plans are possible."""
    for _ in range(draws):
        chosen = {name: draw.choice(values) for name, values in FACTORS.items()} | dict(pair)
        if plan_of(chosen) is not None:
            yield chosen


def cover() -> list[Chosen]:
    """Of a few combinations with a pair that is missing, the one with most of what is missing."""
    draw = random.Random(0)
    missing = dict.fromkeys(all_pairs())
    covering: list[Chosen] = []
    while missing:
        wanted = next(iter(missing))
        del missing[wanted]
        found = [chosen for chosen, _ in zip(drawn_with(wanted, draw), range(_KEPT), strict=False)]
        if found:
            covering.append(max(found, key=lambda c: sum(p in missing for p in pairs_of(c))))
            for pair in pairs_of(covering[-1]):
                missing.pop(pair, None)
    return covering


def main() -> None:
    rows = [list(FACTORS), *([chosen[name] for name in FACTORS] for chosen in cover())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(w.ljust(n) for w, n in zip(row, widths, strict=True)) for row in rows)
    TABLE.write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    main()
