"""How the dimensions of a tensor relate to the axes of a layout.

An ordinary tile has each axis of its layout in a dimension of its own: `dims == (-2, -1)`.
Flattening joins neighbouring dimensions, cut or not, in one; such a *joined* dimension remembers
its factors in order, so that it can be taken apart again and so that a replicated tensor of the
same global extent can be narrowed to this rank's part:

    (N, C, H, W) with H and W cut  --flatten(2)-->  (N, C, L),  joined == {-1: (axis H, axis W)}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from ..comm.communicator import Communicator
from ..geometry import Box, Layout


@dataclass(frozen=True, slots=True)
class Factor:
    """Part of a joined dimension: an axis of the layout, or (axis −1) an uncut extent."""

    axis: int
    extent: int


@dataclass(frozen=True, eq=False)
class Placement:
    """A layout, the tensor dimension of each of its axes, and the ranks.

    `dims` count from the right (always negative), so they survive broadcasting.
    """

    layout: Layout
    dims: tuple[int, ...]
    comm: Communicator
    joined: tuple[tuple[int, tuple[Factor, ...]], ...] = ()

    @property
    def box(self) -> Box:
        """This rank's region."""
        return self.layout.boxes[self.comm.rank]

    @cached_property
    def cut_dims(self) -> tuple[int, ...]:
        """Tensor dimensions of which some rank holds less than everything."""
        return tuple(sorted({self.dims[axis] for axis in self.layout.cut_axes}))

    @cached_property
    def is_cut(self) -> bool:
        return bool(self.layout.cut_axes)

    @cached_property
    def factors(self) -> dict[int, tuple[Factor, ...]]:
        """The factors of every dimension that carries an axis."""
        ordinary = {
            dim: (Factor(axis, self.layout.size[axis]),)
            for axis, dim in enumerate(self.dims)
            if self.dims.count(dim) == 1
        }
        return {**ordinary, **dict(self.joined)}

    @cached_property
    def global_sizes(self) -> dict[int, int]:
        """The global extent of every dimension that carries an axis."""
        return {d: prod(f.extent for f in factors) for d, factors in self.factors.items()}

    def global_shape(self, local: Sequence[int]) -> tuple[int, ...]:
        shape = list(local)
        for dim, n in self.global_sizes.items():
            shape[dim] = n
        return tuple(shape)

    def global_numel(self, local: Sequence[int]) -> int:
        """The number of cells of the whole tensor."""
        return prod(self.global_shape(local))

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of this rank's part of a tensor of the global `shape`."""
        local = list(shape)
        for dim, factors in self.factors.items():
            local[dim] = prod(self.extent_here(f) for f in factors)
        return tuple(local)

    def extent_here(self, factor: Factor) -> int:
        return factor.extent if factor.axis < 0 else self.box[factor.axis].size

    @cached_property
    def total(self) -> int:
        """Cells of the whole layout."""
        return prod(self.layout.size)

    def axis_of(self, dim: int) -> int | None:
        """The axis in an ordinary (negative) dimension; None where it is not split."""
        return self.dims.index(dim) if dim in self.dims else None

    # ── derived placements, made once ────────────────────────────────────────────────────────

    def with_layout(self, layout: Layout) -> Placement:
        return _placement(layout, self.dims, self.comm, self.joined)

    def moved(self, where: dict[int, int]) -> Placement:
        """The same axes after dimensions moved: old negative dim → new negative dim."""
        return ordered(
            self.layout,
            tuple(where.get(d, d) for d in self.dims),
            self.comm,
            tuple((where.get(d, d), f) for d, f in self.joined),
        )

    def without(self, dims: Sequence[int], keep: bool) -> Placement | None:
        """After a local reduction over `dims`, none of them cut; None if no axis remains.

        With `keep` the dimensions stay, of size 1; else the others are renumbered.
        """
        axes = [a for a, d in enumerate(self.dims) if d not in dims]
        if not axes:
            return None
        renumber = {a: i for i, a in enumerate(axes)}

        def place(d: int) -> int:
            return d if keep else d + sum(1 for gone in dims if gone > d)

        joined = tuple(
            (place(d), tuple(Factor(renumber.get(f.axis, -1), f.extent) for f in factors))
            for d, factors in self.joined
            if d not in dims
        )
        placed = tuple(place(self.dims[a]) for a in axes)
        return _placement(self.layout.select(axes), placed, self.comm, joined)

    def with_dim(self, dim: int, size: int) -> Placement:
        """The same, with an uncut dimension made an axis of its own."""
        layout = self.layout.insert(len(self.dims), size)
        return ordered(layout, (*self.dims, dim), self.comm, self.joined)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Placement)
            and self.comm is other.comm
            and self.dims == other.dims
            and self.joined == other.joined
            and self.layout == other.layout
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.layout, self.dims, self.joined))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=65536)
def _placement(
    layout: Layout,
    dims: tuple[int, ...],
    comm: Communicator,
    joined: tuple[tuple[int, tuple[Factor, ...]], ...] = (),
) -> Placement:
    return Placement(layout, dims, comm, joined)


def ordered(
    layout: Layout,
    dims: tuple[int, ...],
    comm: Communicator,
    joined: tuple[tuple[int, tuple[Factor, ...]], ...] = (),
) -> Placement:
    """A placement with its axes in the order of the dimensions: one form for one meaning.

    The axes of a joined dimension keep their order, which is that of its factors.
    """
    order = sorted(range(len(dims)), key=lambda axis: dims[axis])
    if order != list(range(len(dims))):
        renumber = {axis: i for i, axis in enumerate(order)}
        layout = _reordered(layout, tuple(order))
        dims = tuple(dims[axis] for axis in order)
        joined = tuple(
            (d, tuple(Factor(renumber.get(f.axis, -1), f.extent) for f in factors))
            for d, factors in joined
        )
    return _placement(layout, dims, comm, tuple(sorted(joined, key=lambda item: item[0])))


@lru_cache(maxsize=4096)
def _reordered(layout: Layout, order: tuple[int, ...]) -> Layout:
    return Layout(
        tuple(layout.size[a] for a in order),
        tuple(Box(tuple(box[a] for a in order)) for box in layout.boxes),
    )
