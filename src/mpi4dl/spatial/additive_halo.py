"""Convolution that computes its own tile while the halo is under way.

Convolution is linear, so the output of a tile is the convolution of the tile alone, padded with
zeros, plus what the halo adds to a few outputs along the borders:

    ┌──────────────────┐
    │   strip (low)    │   post the exchange of the strips
    ├──────────────────┤   convolve the own tile; no padded copy of it is made
    │                  │   wait
    │     own tile     │   convolve each strip with zeros around it, and add that to the
    │                  │   outputs whose windows reach into it
    ├──────────────────┤
    │   strip (high)   │   The strips of later dimensions are as long as the tile, those of the
    └──────────────────┘   first include the corners: together they are the halo, once.

Backward mirrors it: the strips' gradients first, which start on their way home; then the tile's;
then what arrives is added to the tile's border.

A strip is computed with zeros around it, so its outputs cost twice. Where that is more than a copy
of the tile, which is what the general path has to make, that one is taken (`pays`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..comm.communicator import Communicator
from ..comm.exchange import Index, first_derivative_only, wants
from ..geometry import Box, Interval, SlidingWindow, Transfer
from .placement import Placement
from .regions import Windows, plan

Sizes = tuple[int, ...]

# Measured on CPUs, where the two paths took the same time (`benchmarks/halo_sweep`).
_COPY = 32  # multiplications that take as long as to copy the value they are done with
_CACHED = 2**18  # values of a tile that is copied within the processor's cache


@dataclass(frozen=True)
class Geometry:
    """The numbers of one convolution call: sizes that no rank has to ask another about."""

    stride: Sizes
    padding: Sizes  # as PyTorch pads every dimension of a tile
    native: Sizes  # the same, but 0 where the image is cut: strips carry their own surroundings
    dilation: Sizes
    groups: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sizes) -> Tensor:
        zeros = [0] * len(self.stride)
        return torch.ops.aten.convolution(
            x, weight, bias, self.stride, padding, self.dilation, False, zeros, self.groups
        )

    def gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, padding: Sizes, wanted: list[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        zeros = [0] * len(self.stride)
        return torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            [weight.shape[0]],
            self.stride,
            padding,
            self.dilation,
            False,
            zeros,
            self.groups,
            wanted,
        )


@dataclass(frozen=True)
class Strip:
    """One side's part of the halo, as this rank sees it."""

    extent: Sizes  # of the windows of all outputs that it contributes to, per axis
    outputs: Index  # those outputs
    arriving: tuple[tuple[int, Index], ...]  # (peer, where in the windows)


@dataclass(frozen=True)
class HaloPlan:
    strips: tuple[Strip, ...]
    leaving: tuple[tuple[int, Index], ...]  # (peer, which part of the own tile), strip by strip


@lru_cache(maxsize=4096)
def is_aligned(placement: Placement, windows: Windows) -> bool:
    """Every rank's outputs are those of its own tile padded like the image. The same everywhere."""
    out = plan(placement, windows).placement.layout
    for before, after in zip(placement.layout.boxes, out.boxes, strict=True):
        for dim, window in windows:
            if not isinstance(window, SlidingWindow):
                continue
            axis = placement.dims.index(dim)
            mine, made = before[axis], after[axis]
            span = mine.size + 2 * window.padding - window.reach - 1
            if mine.empty or made.empty or span < 0 or mine.start != made.start * window.stride:
                return False
            if span // window.stride + 1 != made.size:
                return False
        if before.empty:
            return False
    return True


@lru_cache(maxsize=4096)
def pays(placement: Placement, windows: Windows, channels: int, weights: int) -> bool:
    """Whether the strips of all tiles cost less than copies of the tiles. The same everywhere.

    `channels` are those of the input for all images, `weights` how many numbers the weight has for
    each input channel: multiplications for each value.
    """
    cells = placement.total * channels // placement.comm.size
    share = 0.0
    for dim, window in windows:
        if isinstance(window, SlidingWindow):
            axis = placement.dims.index(dim)
            share += window.reach / min(box[axis].size for box in placement.layout.boxes)
    return cells >= _CACHED and share * weights <= _COPY


@lru_cache(maxsize=4096)
def halo_plan(placement: Placement, windows: Windows, ndim: int) -> HaloPlan:
    out = plan(placement, windows).placement.layout
    rank, dims = placement.comm.rank, placement.dims
    sliding = {placement.dims.index(d): w for d, w in windows if isinstance(w, SlidingWindow)}
    strips: list[Strip] = []
    leaving: list[tuple[int, Index]] = []
    for axis in sliding:
        for low in (True, False):
            parts = [
                _strip(before, after, sliding, axis, low)
                for before, after in zip(placement.layout.boxes, out.boxes, strict=True)
            ]
            moves = Transfer(placement.layout, tuple(part[0] for part in parts))
            own = placement.layout.boxes[rank]
            leaving += [(m.target, _index(m.box, own, dims, ndim)) for m in moves.outgoing(rank)]
            _, window, outputs = parts[rank]
            arriving = tuple(
                (m.source, _index(m.box, window, dims, ndim)) for m in moves.incoming(rank)
            )
            if arriving:
                where = _index(outputs, out.boxes[rank], dims, ndim)
                strips.append(Strip(window.shape, where, arriving))
    return HaloPlan(tuple(strips), tuple(leaving))


def _strip(
    before: Box, after: Box, sliding: dict[int, SlidingWindow], axis: int, low: bool
) -> tuple[Box, Box, Box]:
    """(the pixels of a strip, the windows of the outputs that read it, those outputs)."""
    pixels, windows, outputs = list(before), list(before), list(after)
    for other, window in sliding.items():
        reads = window.reads(after[other])
        windows[other] = reads
        # Later dimensions take the corners with them; nobody wants pixels that no window reads.
        whole = Interval(0, window.in_size) if other > axis else before[other]
        pixels[other] = reads.intersect(whole)
    window, mine, made = sliding[axis], before[axis], after[axis]
    inside = window.reads(made).intersect(Interval(0, window.in_size))
    if low:
        pixels[axis] = Interval(min(inside.start, mine.start), mine.start)
        touched = -(-(mine.start + window.padding) // window.stride)
        outputs[axis] = Interval(made.start, max(made.start, min(touched, made.stop)))
    else:
        pixels[axis] = Interval(mine.stop, max(inside.stop, mine.stop))
        first = (mine.stop + window.padding - window.reach - 1) // window.stride + 1
        outputs[axis] = Interval(min(max(first, made.start), made.stop), made.stop)
    windows[axis] = window.reads(outputs[axis])
    return Box(tuple(pixels)), Box(tuple(windows)), Box(tuple(outputs))


def _index(box: Box, outer: Box, dims: Sizes, ndim: int) -> Index:
    full = [slice(None)] * ndim
    for dim, part in zip(dims, box.slices_in(outer), strict=True):
        full[dim] = part
    return tuple(full)


class _HaloConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tile: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        halo: HaloPlan,
        dims: Sizes,
        comm: Communicator,
    ) -> Tensor:
        surroundings = [_surroundings(tile, strip, dims) for strip in halo.strips]
        arriving = [
            (peer, torch.empty_like(around[where], memory_format=torch.contiguous_format))
            for strip, around in zip(halo.strips, surroundings, strict=True)
            for peer, where in strip.arriving
        ]
        leaving = [(peer, tile[where]) for peer, where in halo.leaving]
        pending = comm.start(leaving, arriving)
        out = geometry(tile, weight, bias, geometry.padding)
        pending.wait()
        buffers = iter(arriving)
        for strip, around in zip(halo.strips, surroundings, strict=True):
            for _, where in strip.arriving:
                around[where] = next(buffers)[1]
            out[strip.outputs] += geometry(around, weight, None, geometry.native)
        ctx.save_for_backward(tile, weight, *surroundings)
        ctx.geometry, ctx.halo, ctx.comm, ctx.has_bias = geometry, halo, comm, bias is not None
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tile, weight, *surroundings = ctx.saved_tensors
        geometry, halo = ctx.geometry, ctx.halo
        for_tile, for_weight = wants(ctx, 0), wants(ctx, 1)
        for_bias = ctx.has_bias and wants(ctx, 2)
        of_weight: Tensor | None = None
        going: list[tuple[int, Tensor]] = []
        for strip, around in zip(halo.strips, surroundings, strict=True):
            mine = grad[strip.outputs].contiguous()
            back, part, _ = geometry.gradients(
                mine, around, weight, geometry.native, [for_tile, for_weight, False]
            )
            if back is not None:
                going += [(peer, back[where]) for peer, where in strip.arriving]
            if part is not None:
                of_weight = part if of_weight is None else of_weight.add_(part)
        returning = halo.leaving if for_tile else ()
        coming = [
            (peer, torch.empty_like(tile[where], memory_format=torch.contiguous_format))
            for peer, where in returning
        ]
        pending = ctx.comm.start(going, coming)
        wanted = [for_tile, for_weight, for_bias]
        of_tile, main, of_bias = geometry.gradients(grad, tile, weight, geometry.padding, wanted)
        if main is not None:
            of_weight = main if of_weight is None else main.add_(of_weight)
        pending.wait()
        for (_, where), (_, buffer) in zip(returning, coming, strict=True):
            assert of_tile is not None
            of_tile[where] += buffer
        return of_tile, of_weight, of_bias, None, None, None, None


def _surroundings(tile: Tensor, strip: Strip, dims: Sizes) -> Tensor:
    """Zeros as wide as the windows that reach into a strip."""
    shape = list(tile.shape)
    for dim, n in zip(dims, strip.extent, strict=True):
        shape[dim] = n
    return tile.new_zeros(shape)


def convolve(
    tile: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    placement: Placement,
    windows: Windows,
    geometry: Geometry,
) -> Tensor:
    """This rank's outputs of an aligned convolution (`is_aligned`)."""
    device = "cpu" if tile.is_meta else tile.device.type  # in a dry run there is no autocast
    if torch.is_autocast_enabled(device) and tile.dtype != torch.float64:
        kind = torch.get_autocast_dtype(device)
        tile, weight = tile.to(kind), weight.to(kind)
        bias = None if bias is None else bias.to(kind)
    halo = halo_plan(placement, windows, tile.ndim)
    with torch.autocast(device, enabled=False):
        return _HaloConvolution.apply(
            tile, weight, bias, geometry, halo, placement.dims, placement.comm
        )
