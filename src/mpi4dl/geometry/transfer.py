"""From "rank r has box A_r" to "rank r wants box B_r".

The forward direction copies: every wanted cell inside the image comes from the one rank that
has it. The backward direction is the same list with sources and targets swapped, and what
arrives for the same cell is summed. That is all there is to halo exchange, scattering,
gathering, and moving between two layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..errors import GeometryError
from .box import Box
from .layout import Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One message: `source` sends the cells of `box` to `target`."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True)
class Transfer:
    """All moves that give every rank the part of its target box that lies inside the image.

    Target boxes may overlap each other, reach outside the image, and be empty.
    """

    layout: Layout
    targets: tuple[Box, ...]

    def __post_init__(self) -> None:
        if len(self.targets) != self.layout.ranks:
            raise GeometryError(
                f"{len(self.targets)} wanted boxes for the {self.layout.ranks} ranks of the layout"
            )

    def outgoing(self, rank: int) -> Iterator[Move]:
        """What `rank` sends, itself included, in the order of the targets."""
        own = self.layout.boxes[rank]
        for target, wanted in enumerate(self.targets):
            common = own.intersect(wanted)
            if not common.empty:
                yield Move(rank, target, common)

    def incoming(self, rank: int) -> Iterator[Move]:
        """What `rank` receives, from itself included, in the order of the sources."""
        wanted = self.targets[rank]
        for source, box in enumerate(self.layout.boxes):
            common = box.intersect(wanted)
            if not common.empty:
                yield Move(source, rank, common)

    def moves(self) -> Iterator[Move]:
        """Every move of every rank."""
        for rank in range(self.layout.ranks):
            yield from self.incoming(rank)

    @cached_property
    def is_local(self) -> bool:
        """No rank needs anything that it does not hold: nothing has to be sent at all.

        The answer is the same on every rank, so all of them agree on whether to communicate.
        """
        whole = Box.full(self.layout.size)
        return all(
            own.contains(wanted.intersect(whole))
            for own, wanted in zip(self.layout.boxes, self.targets, strict=True)
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.layout, self.targets))

    def __hash__(self) -> int:
        return self._hash
