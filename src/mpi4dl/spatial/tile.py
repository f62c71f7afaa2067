"""`Tile`: this rank's region of a global image, which behaves like the global image.

A tile is a `torch.Tensor` whose data is the local region. Functions called on it are answered by
the rules in this package (`__torch_function__`); shapes, losses and statistics are those of the
whole image. Autograd, autocast, checkpointing and kernels stay PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..comm.communicator import Communicator
from ..comm.exchange import transfer
from ..comm.launch import communicator
from ..errors import LayoutMismatch, Mpi4dlError
from ..geometry import Box, Layout, Transfer
from .agree import check_same_on_all_ranks
from .placement import Placement, ordered
from .registry import answer, no_intercept


class Tile(torch.Tensor):
    """The local region of a global tensor. Made by `mpi4dl.shard` and `Tile.from_local`."""

    placement: Placement
    """How this tile's dimensions relate to its layout, and over which ranks."""

    margin: Any = None
    """Of tiles that hold more than their own region: how much, and what windows do with it."""

    @staticmethod
    def __new__(cls, *args: Any, **kwargs: Any) -> Tile:
        raise TypeError("make tiles with mpi4dl.shard(x, grid=...) or Tile.from_local(x, layout)")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return answer(func, args, kwargs, Tile)

    @staticmethod
    def from_local(
        local: Tensor,
        layout: Layout,
        dims: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
        check: bool = True,
    ) -> Tile:
        """A tile from this rank's own region, which nobody else has to hold.

        `local` has this rank's box of `layout` in the dimensions `dims` (default: the last ones).
        With `check`, the ranks first compare notes (one small message), so that a wrong shape
        on one rank is an error on all.
        """
        comm = communicator(group)
        placement, problem = _agreed(lambda: _placement_for(local, layout, dims, comm))
        if placement is not None and placement.local_shape(local.shape) != tuple(local.shape):
            problem = (
                f"the local tensor is {tuple(local.shape)} and its box is {placement.box.shape} in "
                f"the dimensions {placement.dims}"
            )
        if check:
            cut = () if placement is None else placement.dims
            others = tuple(n for d, n in enumerate(local.shape, -local.ndim) if d not in cut)
            check_same_on_all_ranks("Tile.from_local", local, others, placement, problem, comm)
        if placement is None or problem:
            raise LayoutMismatch(f"Tile.from_local: {problem}")
        return wrap(alias(local), placement)

    def to_local(self) -> Tensor:
        """This rank's region as a plain tensor, differentiable. Shares memory with the tile."""
        return alias(self)

    def full_tensor(self) -> Tensor:
        """The whole tensor on every rank, differentiable: the one operation that gathers."""
        placement = self.placement
        if placement.joined:
            return separated(self).full_tensor().reshape(self.global_shape)
        layout = placement.layout
        targets = (Box.full(layout.size),) * layout.ranks
        return transfer(alias(self), Transfer(layout, targets), placement.dims, placement.comm)

    def redistribute(self, layout: Layout) -> Tile:
        """The same global tensor in other boxes, differentiable; only what differs is sent."""
        if layout.size != self.layout.size or layout.ranks != self.layout.ranks:
            raise LayoutMismatch(f"{layout} cannot take the place of {self.layout}")
        layout.check_disjoint()
        return redistribute(self, self.placement.with_layout(layout))

    def settled(self) -> Tile:
        """The tile without any margin, which is the tile itself."""
        return self

    def maker(self) -> Callable[[Tensor], Tile]:
        """What makes such a tile of its local tensor, and keeps no memory itself."""
        placement = self.placement
        return lambda local: wrap(alias(local), placement)

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """Which rank holds which box."""
        return self.placement.layout

    @property
    def global_shape(self) -> torch.Size:
        """The shape of the whole tensor; `tile.shape` is the same."""
        with no_intercept():
            return torch.Size(self.placement.global_shape(self.shape))

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        with no_intercept():
            local, dtype, grad = tuple(self.shape), self.dtype, self.requires_grad
        placement = self.placement
        return (
            f"Tile(global {tuple(self.global_shape)}, local {local} at {placement.box} of rank "
            f"{placement.comm.rank}/{placement.comm.size}, {dtype}"
            f"{', requires_grad' if grad else ''})"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a tile is one rank's part and cannot be pickled: save tile.to_local() or "
            "tile.full_tensor()"
        )


def alias(tensor: Tensor) -> Tensor:
    """The plain tensor with the same data and gradient history."""
    with no_intercept():
        return tensor.as_subclass(torch.Tensor)


def wrap(local: Tensor, placement: Placement) -> Tile:
    """Make a fresh plain tensor, this rank's part, a tile of `placement`. Changes it in place."""
    # Assigning the class avoids `as_subclass`, whose alias would make every tile a view and
    # every in-place operator on it pay for that in backward.
    local.__class__ = Tile
    tile: Tile = local  # type: ignore[assignment]
    tile.placement = placement
    return tile


def shard(
    x: Tensor,
    grid: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    layout: Layout | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tile:
    """Cut a tensor that every rank holds alike, and keep this rank's part. Differentiable.

    `grid` is the number of parts in each of `dims` (default: the last ones, so rows × columns
    for two); its product is the number of ranks. `layout` says the boxes outright instead. With
    neither, the most square grid of two dimensions is used.
    """
    comm = communicator(group)

    def place() -> Placement:
        if layout is not None and grid is not None:
            raise LayoutMismatch("give either a grid or a layout, not both")
        chosen = _layout_for(x, grid, dims, comm) if layout is None else layout
        placement = _placement_for(x, chosen, dims, comm)
        if placement.global_shape(x.shape) != tuple(x.shape):
            raise LayoutMismatch(
                f"the layout has the size {chosen.size} and the tensor is {tuple(x.shape)} "
                f"in the dimensions {placement.dims}"
            )
        return placement

    placement, problem = _agreed(place)
    check_same_on_all_ranks("mpi4dl.shard", x, tuple(x.shape), placement, problem, comm)
    assert placement is not None
    part = narrowed(alias(x), placement)
    # A copy of the part: a view would keep the whole image in memory, and not be contiguous.
    return wrap(part.clone() if part.shape != x.shape else part, placement)


def _agreed(place: Callable[[], Placement]) -> tuple[Placement | None, str]:
    """A placement, or what is wrong with it: for all ranks to hear of before one of them raises."""
    try:
        return place(), ""
    except Mpi4dlError as error:
        return None, str(error)


def narrowed(x: Tensor, placement: Placement) -> Tensor:
    """This rank's part of a tensor that every rank holds, along the placement's dimensions.

    Dimensions that `x` lacks, or has with size 1, broadcast and stay.
    """
    whole = x.shape
    for dim, factors in placement.factors.items():
        size = placement.global_sizes[dim]
        if len(whole) < -dim or whole[dim] == 1 != size:
            continue
        if whole[dim] != size:
            raise LayoutMismatch(
                f"a plain tensor of {tuple(whole)} beside a tile whose dimension {dim} has "
                f"{size} cells in the whole image: plain tensors are whole, or broadcast"
            )
        if len(factors) == 1:
            part = placement.box[factors[0].axis]
            if part.size != x.shape[dim]:
                x = x.narrow(dim, part.start, part.size)
            continue
        apart = x.unflatten(dim, [f.extent for f in factors])
        first = apart.ndim + dim + 1 - len(factors)
        for i, factor in enumerate(factors):
            if factor.axis >= 0:
                part = placement.box[factor.axis]
                apart = apart.narrow(first + i, part.start, part.size)
        x = apart.flatten(first, first + len(factors) - 1)
    return alias(x)


def redistribute(tile: Tile, placement: Placement) -> Tile:
    """The same global tensor in other boxes over the same ranks."""
    if tile.placement == placement:
        return tile
    current = tile.placement
    check_same_ranks(current.comm, placement.comm)
    if current.joined or placement.joined:
        return _redistributed_joined(tile, placement)
    dims = tuple(sorted({*current.dims, *placement.dims}))
    with no_intercept():
        shape = current.global_shape(tile.shape)
    source, target = (_with_dims(p, dims, shape) for p in (current, placement))
    moves = Transfer(source.layout, target.layout.boxes)
    return wrap(alias(transfer(alias(tile), moves, dims, current.comm)), placement)


def check_same_ranks(a: Communicator, b: Communicator) -> None:
    """Tiles meet on the same ranks only: rank 1 of another group may be somebody else."""
    if a is not b:
        raise LayoutMismatch(
            f"two tiles lie on different groups of ranks ({a!r} and {b!r}): "
            "shard both over one group, or gather one of them with .full_tensor()"
        )


def _redistributed_joined(tile: Tile, placement: Placement) -> Tile:
    """The same for flattened tensors of one kind: taken apart, moved, and joined again."""
    current = tile.placement
    if (current.dims, current.joined) != (placement.dims, placement.joined):
        raise LayoutMismatch("two tensors that were flattened in different ways cannot be combined")
    apart = separated(tile)
    moved = redistribute(apart, apart.placement.with_layout(placement.layout))
    local = alias(moved).reshape(placement.local_shape(tile.global_shape))
    return wrap(alias(local), placement)


def _with_dims(placement: Placement, dims: tuple[int, ...], shape: Sequence[int]) -> Placement:
    for dim in dims:
        if dim not in placement.dims:
            placement = placement.with_dim(dim, shape[dim])
    return placement


def separated(tile: Tile) -> Tile:
    """A tile with joined dimensions, taken apart into one dimension for each factor."""
    placement = tile.placement
    local = alias(tile)
    where: dict[int, int] = {}
    shift = 0
    # From the right, so that the dimensions still to come keep their negative numbers.
    for dim in range(-1, -local.ndim - 1, -1):
        factors = placement.factors.get(dim)
        if factors is None:
            continue
        if len(factors) > 1:
            local = local.unflatten(dim - shift, [placement.extent_here(f) for f in factors])
        for back, factor in enumerate(reversed(factors)):
            if factor.axis >= 0:
                where[factor.axis] = dim - shift - back
        shift += len(factors) - 1
    dims = tuple(where[axis] for axis in range(len(placement.dims)))
    return wrap(alias(local), ordered(placement.layout, dims, placement.comm))


def _layout_for(
    x: Tensor, grid: Sequence[int] | None, dims: Sequence[int] | None, comm: Communicator
) -> Layout:
    axes = len(dims) if dims is not None else len(grid) if grid is not None else min(2, x.ndim)
    dims = tuple(dims) if dims is not None else tuple(range(-axes, 0))
    if any(not -x.ndim <= d < x.ndim for d in dims):
        raise LayoutMismatch(f"a tensor of {x.ndim} dimensions cannot be cut in {tuple(dims)}")
    size = tuple(x.shape[d] for d in dims)
    if grid is None:
        return Layout.square(size, comm.size)
    return Layout.grid(size, grid)


def _placement_for(
    x: Tensor, layout: Layout, dims: Sequence[int] | None, comm: Communicator
) -> Placement:
    dims = range(-len(layout.size), 0) if dims is None else dims
    if isinstance(x, Tile):
        raise LayoutMismatch(
            "this is a tile already; to change its boxes use tile.redistribute(layout)"
        )
    if layout.ranks != comm.size:
        raise LayoutMismatch(
            f"the layout is for {layout.ranks} ranks and there are {comm.size}: start "
            f"{layout.ranks} ranks, or choose a grid whose product is {comm.size}"
        )
    if len(dims) != len(layout.size) or any(not -x.ndim <= d < x.ndim for d in dims):
        raise LayoutMismatch(
            f"the layout has {len(layout.size)} axes; they cannot be the dimensions {tuple(dims)} "
            f"of a tensor of {x.ndim} dimensions"
        )
    negative = tuple(d - x.ndim if d >= 0 else d for d in dims)
    if len(set(negative)) != len(negative):
        raise LayoutMismatch(f"the dimensions {tuple(dims)} name one dimension twice")
    layout.check_disjoint()
    return ordered(layout, negative, comm)
