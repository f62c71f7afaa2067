"""What the halo benchmarks measure: turns, each of one or more phases that follow on each other."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...comm.communicator import Communicator, use
from ...comm.exchange import transfer
from ...comm.gradients import sync_gradients
from ...geometry import Box, Interval, Layout, Transfer
from ...spatial import Tile
from .exchange import DIMS, Exchange
from .passing import Float16

Turn = tuple[tuple[str, Callable[[], object]], ...]
Work = Callable[[Namespace, Layout, Communicator], list[Turn]]


def exchange(options: Namespace, layout: Layout, comm: Communicator) -> list[Turn]:
    """The halo alone; with its way home, or into one tensor with the tile, if that is asked for."""
    comm = Float16(comm) if options.fp16_allreduce else comm
    halo, pixels = Exchange(layout, options.halo_len, comm), tile_pixels(options, layout, comm)
    turn: Turn = (("forward", lambda: halo.fetch(pixels)),)
    if options.backward:
        around, gradient = halo.fetch(pixels), torch.zeros_like(pixels)
        turn = (*turn, ("backward", lambda: halo.give_back(around, gradient)))
    if not options.with_tile:
        return [turn]
    moves = Transfer(layout, tuple(_widened(box, layout, options.halo_len) for box in layout.boxes))
    return [turn, (("forward, tile included", lambda: transfer(pixels, moves, DIMS, comm)),)]


def _widened(box: Box, layout: Layout, halo: int) -> Box:
    wide = Box(tuple(Interval(side.start - halo, side.stop + halo) for side in box))
    return wide.intersect(Box.full(layout.size))


def compute(options: Namespace, layout: Layout, comm: Communicator) -> list[Turn]:
    """A convolution while its halo is under way, beside the exchange and the convolution alone."""
    comm = Float16(comm) if options.fp16_allreduce else comm
    halo, pixels = Exchange(layout, options.halo_len, comm), tile_pixels(options, layout, comm)
    tile, conv = as_tile(pixels, layout, comm), convolution(options)

    @torch.no_grad()
    def convolve(x: Tensor) -> Tensor:
        return F.conv2d(x, conv.weight, conv.bias, padding=options.halo_len)

    return [
        (("exchange alone", lambda: halo.fetch(pixels)),),
        (("convolution alone", lambda: convolve(pixels)),),
        (("both, overlapped", lambda: convolve(tile)),),
    ]


def layer(options: Namespace, layout: Layout, comm: Communicator) -> list[Turn]:
    """A convolution layer in training: forward, backward, and its gradients summed over ranks."""
    pixels = tile_pixels(options, layout, comm).requires_grad_()
    tile, conv = as_tile(pixels, layout, comm), convolution(options)
    for_sums = Float16(comm) if options.fp16_allreduce else comm
    box = layout.boxes[comm.rank]
    gradient = torch.ones(
        options.batch_size, options.out_channels, *box.shape, device=options.device
    )
    made: list[Tile] = []

    def forward() -> None:
        made[:] = [conv(tile)]

    def backward() -> None:
        conv.zero_grad()
        pixels.grad = None
        made.pop().to_local().backward(gradient)

    def summed() -> None:
        sync_gradients(conv, for_sums)

    return [(("forward", forward), ("backward", backward), ("gradients summed", summed))]


def tile_pixels(options: Namespace, layout: Layout, comm: Communicator) -> Tensor:
    generator = torch.Generator().manual_seed(comm.rank)
    shape = (options.batch_size, options.in_channels, *layout.boxes[comm.rank].shape)
    return torch.randn(shape, generator=generator).to(options.device)


def as_tile(pixels: Tensor, layout: Layout, comm: Communicator) -> Tile:
    with use(comm):
        return Tile.from_local(pixels, layout, check=False)


def convolution(options: Namespace) -> nn.Conv2d:
    """The same weights on every rank, whatever else it has drawn."""
    size, padding = 2 * options.halo_len + 1, options.halo_len
    conv = nn.Conv2d(options.in_channels, options.out_channels, size, padding=padding)
    generator = torch.Generator().manual_seed(0)
    bound = (options.in_channels * size * size) ** -0.5
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return conv.to(options.device)
