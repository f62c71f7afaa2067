"""Which rank holds which region of a tensor.

vertical, 3 parts      horizontal, 3 parts      square, 4 parts
┌───┬───┬───┐          ┌───────────┐            ┌─────┬─────┐
│   │   │   │          │     0     │            │  0  │  1  │
│ 0 │ 1 │ 2 │          ├───────────┤            ├─────┼─────┤
│   │   │   │          │     1     │            │  2  │  3  │
└───┴───┴───┘          ├───────────┤            └─────┴─────┘
                       │     2     │
                       └───────────┘
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import isqrt, prod

from ..errors import GeometryError
from .box import Box, Interval

CutMap = Callable[[int], int]


@dataclass(frozen=True, eq=False)
class Layout:
    """A global size and the box of every rank. The boxes tile the size: disjoint, nothing left out.

    The axes are whichever dimensions are split, in tensor order: `(H, W)`, `(N, H, W)`,
    `(D, H, W)`, `(L,)`. Boxes may be unequal, and empty.
    """

    size: tuple[int, ...]
    boxes: tuple[Box, ...]

    def __post_init__(self) -> None:
        if not self.boxes:
            raise GeometryError("a layout needs at least one box")
        if any(n < 0 for n in self.size):
            raise GeometryError(f"a layout cannot have the size {self.size}")
        whole = Box.full(self.size)
        for rank, box in enumerate(self.boxes):
            if len(box) != len(self.size) or not all(
                a.contains(b) for a, b in zip(whole, box, strict=True)
            ):
                raise GeometryError(f"box {box} of rank {rank} lies outside the size {self.size}")
        held = sum(box.volume for box in self.boxes)
        if held != whole.volume:
            raise GeometryError(
                f"the boxes hold {held} cells and the size {self.size} has {whole.volume}: "
                "every cell must belong to exactly one rank"
            )

    def check_disjoint(self) -> None:
        """Full proof that the boxes tile the size; quadratic in the number of ranks, made once."""
        if self._overlapping is not None:
            first, second = self._overlapping
            raise GeometryError(f"the boxes of ranks {first} and {second} overlap")

    @cached_property
    def _overlapping(self) -> tuple[int, int] | None:
        for rank, box in enumerate(self.boxes):
            for other in range(rank):
                if not box.intersect(self.boxes[other]).empty:
                    return other, rank
        return None

    # ── constructors ─────────────────────────────────────────────────────────────────────────

    @classmethod
    def grid(cls, size: Sequence[int], parts: Sequence[int]) -> Layout:
        """Cut axis i into `parts[i]` nearly equal pieces; ranks count in row-major order."""
        return _grid(tuple(size), tuple(parts))

    @classmethod
    def from_cuts(cls, size: Sequence[int], cuts: Sequence[Sequence[int]]) -> Layout:
        """Cut axis i at `cuts[i]`: `from_cuts((97, 75), [(40,), (30, 50)])` is a 2×3 grid."""
        return _from_cuts(tuple(size), tuple(tuple(c) for c in cuts))

    @classmethod
    def square(cls, size: Sequence[int], parts: int) -> Layout:
        """The most square grid over the last two axes: 4 is 2×2, 6 is 2×3, 2 is 1×2, 5 is 1×5."""
        return cls.grid(size, square_grid(parts, len(size)))

    @classmethod
    def vertical(cls, size: Sequence[int], parts: int) -> Layout:
        """Parts side by side: the width (last axis) is cut."""
        return cls.grid(size, (*[1] * (len(size) - 1), parts))

    @classmethod
    def horizontal(cls, size: Sequence[int], parts: int) -> Layout:
        """Parts one above the other: the height (last axis but one) is cut."""
        if len(size) < 2:
            raise GeometryError("horizontal parts need a height and a width; use vertical")
        return cls.grid(size, (*[1] * (len(size) - 2), parts, 1))

    @classmethod
    def sliced(cls, size: Sequence[int], parts: int, method: str) -> Layout:
        """By name: `square`, `vertical`, `horizontal`, or a grid such as `2x3`."""
        named = {"square": cls.square, "vertical": cls.vertical, "horizontal": cls.horizontal}
        if method in named:
            return named[method](size, parts)
        if not re.fullmatch(r"\d+(x\d+)*", method):
            raise GeometryError(
                f"unknown slice method {method!r}: use square, vertical, horizontal or rows×columns"
                " such as 2x3"
            )
        counts = tuple(int(n) for n in method.split("x"))
        if prod(counts) != parts:
            raise GeometryError(
                f"the grid {method} has {prod(counts)} parts, and {parts} were asked for"
            )
        return cls.grid(size, (*[1] * (len(size) - len(counts)), *counts))

    # ── questions ────────────────────────────────────────────────────────────────────────────

    @property
    def ranks(self) -> int:
        return len(self.boxes)

    @cached_property
    def cut_axes(self) -> tuple[int, ...]:
        """The axes along which some rank holds less than everything."""
        return tuple(
            axis for axis, n in enumerate(self.size) if any(b[axis].size != n for b in self.boxes)
        )

    def remap(self, axis: int, size: int, cut: CutMap) -> Layout:
        """The layout after an operator that changes one axis; `cut` says where a cut goes.

        `cut` must not decrease. The ends of the axis stay its ends, so the result tiles again,
        whatever the boxes are.
        """
        before = self.size[axis]

        def place(c: int) -> int:
            return 0 if c == 0 else size if c == before else min(max(cut(c), 0), size)

        def moved(box: Box) -> Box:
            start, stop = box[axis].start, box[axis].stop
            # A rank that held nothing holds nothing, also where the whole axis was empty.
            new = Interval(place(start), place(stop))
            return Box((*box.intervals[:axis], new, *box.intervals[axis + 1 :]))

        sizes = (*self.size[:axis], size, *self.size[axis + 1 :])
        return Layout(sizes, tuple(moved(b) for b in self.boxes))

    def select(self, axes: Sequence[int]) -> Layout:
        """Keep only these axes. The others must not be cut, or the boxes would overlap."""
        return Layout(
            tuple(self.size[a] for a in axes),
            tuple(Box(tuple(b[a] for a in axes)) for b in self.boxes),
        )

    def insert(self, axis: int, size: int) -> Layout:
        """Add an axis that is not cut."""
        whole = Interval(0, size)
        return Layout(
            (*self.size[:axis], size, *self.size[axis:]),
            tuple(Box((*b.intervals[:axis], whole, *b.intervals[axis:])) for b in self.boxes),
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Layout)
            and hash(self) == hash(other)
            and (self.size, self.boxes) == (other.size, other.boxes)
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.size, self.boxes))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        size = "×".join(map(str, self.size))
        shown = ", ".join(f"{r}: {b}" for r, b in enumerate(self.boxes[:8]))
        more = f", … {self.ranks - 8} more" if self.ranks > 8 else ""
        return f"Layout {size} over {self.ranks} ranks ({shown}{more})"


def square_grid(parts: int, axes: int = 2) -> tuple[int, ...]:
    """The factors of `parts` nearest to each other, the larger one last: 6 gives (2, 3)."""
    if parts < 1:
        raise GeometryError(f"cannot cut an image into {parts} parts")
    if axes == 1:
        return (parts,)
    rows = next(r for r in range(isqrt(parts), 0, -1) if parts % r == 0)
    return (*[1] * (axes - 2), rows, parts // rows)


@lru_cache(maxsize=4096)
def _grid(size: tuple[int, ...], parts: tuple[int, ...]) -> Layout:
    if len(size) != len(parts) or any(p < 1 for p in parts):
        raise GeometryError(f"cannot cut the size {size} by the grid {parts}")
    cuts = tuple(
        tuple(i * (n // p) + min(i, n % p) for i in range(1, p))
        for n, p in zip(size, parts, strict=True)
    )
    return _from_cuts(size, cuts)


@lru_cache(maxsize=4096)
def _from_cuts(size: tuple[int, ...], cuts: tuple[tuple[int, ...], ...]) -> Layout:
    if len(size) != len(cuts):
        raise GeometryError(f"{len(cuts)} lists of cuts for the {len(size)} axes of {size}")
    for n, positions in zip(size, cuts, strict=True):
        if any(b < a for a, b in pairwise((0, *positions, n))):
            raise GeometryError(f"cuts {positions} do not rise from 0 to {n}")
    axes = [
        [Interval(a, b) for a, b in pairwise((0, *positions, n))]
        for n, positions in zip(size, cuts, strict=True)
    ]
    layout = Layout(size, tuple(Box(intervals) for intervals in product(*axes)))
    layout.__dict__["_overlapping"] = None  # a grid: known without a proof
    return layout
