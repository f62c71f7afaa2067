"""Machines and what connects them: how long a message takes, and who shares what.

nodes: 16                 ranks_per_node: 4
inside:                   # from rank to rank of one node
  latency: 4e-6           # seconds
  bandwidth: 200e9        # bytes a second
between:                  # from node to node, for all ranks of a node together
  latency: 6e-6
  bandwidth: 25e9
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError


@dataclass(frozen=True)
class Link:
    latency: float
    """Seconds of the smallest message."""
    bandwidth: float
    """Bytes a second."""
    shared: bool = False
    """Whether all ranks of a node have one together; else every rank has one."""
    efficiency: float = 1.0
    """Part of the bandwidth that messages reach."""

    def seconds(self, size: float, sharers: int = 1) -> float:
        rate = self.bandwidth * self.efficiency / (sharers if self.shared else 1)
        return self.latency + size / rate


@dataclass(frozen=True)
class Cluster:
    nodes: int = 1
    ranks_per_node: int = 8
    inside: Link = Link(4e-6, 200e9, efficiency=0.8)
    between: Link = Link(8e-6, 25e9, shared=True, efficiency=0.8)
    cores: int | None = None
    """Of a node, which its ranks share; None: every rank has a processor of its own."""
    copies: bool = False
    """Whether a rank copies its messages itself, as over shared memory, instead of waiting."""
    reduce_latency: float | None = None
    """Seconds of the smallest reduction of two ranks; None: as a message."""
    alone: float = 1.0
    """How long kernels take while the other cores rest, relative to while they work."""
    abreast: float = 1.0
    """How much longer tiles take together than their operators and messages: wherever they meet,
    the last one counts."""
    crowded: float = 1.0
    """How much longer tiles take together where ranks share cores, beside taking turns: those who
    wait for each other are not always given the cores that they need."""
    crowded_latency: float = 0.0
    """Seconds that a message or reduction takes longer where ranks share cores."""
    overlap: bool = True
    """Whether gradients are added up while backward goes on."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def link(self, ranks: tuple[int, ...]) -> Link:
        """The slowest that connects these."""
        first = self.node(min(ranks))
        return self.inside if self.node(max(ranks)) == first else self.between

    def on(self, ranks: tuple[int, ...]) -> int:
        """The most of these ranks that are on one node."""
        counts: dict[int, int] = {}
        for rank in ranks:
            counts[self.node(rank)] = counts.get(self.node(rank), 0) + 1
        return max(counts.values())

    def exchange(self, size: float, ranks: tuple[int, ...]) -> float:
        """Neighbours among these ranks exchange so many bytes each, all at once."""
        return self.link(ranks).seconds(size, self.on(ranks))

    def reduction(self, size: float, ranks: tuple[int, ...]) -> float:
        """An all-reduce, as a ring for what is large and as a tree for what is small."""
        count = len(ranks)
        if count == 1:
            return 0.0
        link = self.link(ranks)
        hops = (count - 1).bit_length()
        latency = self.reduce_latency if self.reduce_latency is not None else link.latency
        # On a node the ring passes every rank; between nodes each node's link carries it once.
        travels = 2 * (count - 1) / count * size
        return hops * latency + travels / (link.bandwidth * link.efficiency)

    def for_ranks(self, count: int) -> Cluster:
        """With as many nodes as so many ranks need."""
        return (
            self if count <= self.ranks else replace(self, nodes=-(-count // self.ranks_per_node))
        )


def load(path: str | Path) -> Cluster:
    """From a file of JSON, or of the plain YAML that is shown above."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text) if text.lstrip().startswith("{") else _plain(text)
        return cluster_of(data.get("cluster", data))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} is no description of a cluster: {error}") from error


def cluster_of(data: Mapping[str, Any]) -> Cluster:
    known = {field.name for field in fields(Cluster)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is none of {', '.join(sorted(known))}")
    links = {name: Link(**data[name]) for name in ("inside", "between") if name in data}
    return Cluster(**{**data, **links})


def _plain(text: str) -> dict[str, Any]:
    """`name: value` lines; what is indented belongs to the line before it."""
    found: dict[str, Any] = {}
    inner: dict[str, Any] = found
    for line in text.splitlines():
        words = line.partition("#")[0].rstrip()
        if not words:
            continue
        name, colon, value = words.strip().partition(":")
        if not colon:
            raise ValueError(f"{line.strip()!r} is no line such as nodes: 16")
        into = inner if words[0] == " " else found
        if value.strip():
            into[name] = _value(value.strip())
        else:
            inner = found[name] = {}
    return found


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    number = float(text)
    return int(number) if number.is_integer() and not set(".eE") & set(text) else number
