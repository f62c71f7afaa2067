"""Which rank has what: rank ⇄ (replica, direction, stage, tile). Plain integers, no processes.

    4 tiles, then 1 rank        direction 0           direction 1, mirrored
                                ┌───┬───┐  ┌───┐      ┌───┬───┐  ┌───┐
                     stage 0    │ 0 │ 1 │  │ 4 │      │ 4 │ 3 │  │ 0 │
                                ├───┼───┤  └───┘      ├───┼───┤  └───┘
                                │ 2 │ 3 │  stage 1    │ 2 │ 1 │  stage 1
                                └───┴───┘             └───┴───┘

In direction 0 the actors have consecutive ranks, in order. What rank r has there, rank P - 1 - r
has in direction 1. Above, ranks 1 to 3 therefore have two tiles of stage 0: of different
micro-batches, and with the same parameters. Replica k is all of it once more, k·P ranks further
on. The mirrored placement is here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..errors import PlanError


@dataclass(frozen=True)
class Mesh:
    """The ranks of a plan.

    `table[direction][stage]` is an actor, as in `schedule.Placement`; a second direction must be
    the mirror image of the first. `tiles[actor]` counts the ranks of an actor of direction 0.

    The ranks of two stages of one direction are all the same (one actor has both) or all
    different: the placement can express nothing else, and `schedule.Program.part` relies on it.
    """

    tiles: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise PlanError(f"{self.replicas} replicas: there must be at least 1")
        if any(count < 1 for count in self.tiles):
            raise PlanError(f"the actors have {self.tiles} ranks: each needs at least 1")
        if not self.table or len(self.table) > 2:
            raise PlanError(f"{len(self.table)} directions: a pipeline has 1 or 2")
        used = set(self.table[0])
        if used != set(range(len(self.tiles))):
            raise PlanError(
                f"stages lie on the actors {sorted(used)}, and ranks are given for "
                f"{len(self.tiles)}: every actor needs a number of ranks and a stage"
            )
        mirror = tuple(len(self.tiles) - 1 - actor for actor in self.table[0])
        if self.table[1:] not in ((), (mirror,)):
            raise PlanError(
                f"direction 1 has its stages on the actors {self.table[1]}; the mirror image of "
                f"{self.table[0]} is {mirror}"
            )

    @property
    def stages(self) -> int:
        return len(self.table[0])

    @property
    def directions(self) -> int:
        return len(self.table)

    @cached_property
    def ranks_of_replica(self) -> int:
        """P, of which one replica consists."""
        return sum(self.tiles)

    @property
    def size(self) -> int:
        """The ranks of all replicas."""
        return self.ranks_of_replica * self.replicas

    @cached_property
    def _first(self) -> tuple[int, ...]:
        """The first rank of every actor of direction 0."""
        return tuple(accumulate(self.tiles, initial=0))

    def ranks(self, replica: int, direction: int, stage: int) -> tuple[int, ...]:
        """Who has the stage, in the order of its tiles. In direction 1 that order falls."""
        self._check(replica=replica, direction=direction, stage=stage)
        actor = self.table[0][stage]
        places = range(self._first[actor], self._first[actor + 1])
        base = replica * self.ranks_of_replica
        return tuple(base + self._mirrored(place, direction) for place in places)

    def held(self, rank: int) -> tuple[tuple[int, int], ...]:
        """The `(direction, stage)` pairs of a rank, sorted: what `Program.part` asks for."""
        return tuple(
            (direction, stage)
            for direction in range(self.directions)
            for stage in range(self.stages)
            if rank in self.ranks(self.replica(rank), direction, stage)
        )

    def tile(self, rank: int, direction: int, stage: int) -> int:
        """Which part of the stage the rank has."""
        ranks = self.ranks(self.replica(rank), direction, stage)
        if rank not in ranks:
            raise PlanError(
                f"rank {rank} has no part of stage {stage} in direction {direction}; "
                f"ranks {ranks} have"
            )
        return ranks.index(rank)

    def replica(self, rank: int) -> int:
        self._check(rank=rank)
        return rank // self.ranks_of_replica

    def copies(self, stage: int) -> tuple[int, ...]:
        """All that have the stage's parameters: its tiles, in both directions, of every replica."""
        everywhere = {
            rank
            for replica in range(self.replicas)
            for direction in range(self.directions)
            for rank in self.ranks(replica, direction, stage)
        }
        return tuple(sorted(everywhere))

    def _mirrored(self, place: int, direction: int) -> int:
        return self.ranks_of_replica - 1 - place if direction else place

    def _check(self, **indices: int) -> None:
        counts = {
            "rank": self.size,
            "replica": self.replicas,
            "direction": self.directions,
            "stage": self.stages,
        }
        for what, index in indices.items():
            if not 0 <= index < counts[what]:
                raise PlanError(f"there is no {what} {index}: they are 0 to {counts[what] - 1}")
