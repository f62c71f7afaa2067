"""Whether halos and convolutions are right: against the image itself, and against one process.

The image is a function of the coordinates, so that every rank knows what it should have received.
Its values are whole numbers that float16 holds as well, rough enough that shifted pixels differ;
weights are float32's, so that in float64 sums of their products are exact in any order.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm.communicator import Communicator
from ...geometry import Box, Interval, Layout
from .exchange import Exchange
from .passing import Float16
from .work import as_tile, convolution

TOLERANCE = 1e-12
"""Of the convolution in float64, relative to its largest output. Pixels must be equal."""
_AT_ONCE = 16  # output channels that rank 0 gathers and computes at once


@dataclass(frozen=True)
class Verdict:
    """What a comparison found, on all ranks together."""

    pixels: int
    wrong_pixels: int
    error: float

    @property
    def passed(self) -> bool:
        return self.wrong_pixels == 0 and self.error <= TOLERANCE  # which NaN is not

    def __str__(self) -> str:
        return (
            f"validation {'passed' if self.passed else 'FAILED'}: {self.wrong_pixels} of "
            f"{self.pixels} received pixels differ from the image's; the convolution differs from "
            f"one process by {self.error:.1e}, relative, in float64 (allowed: {TOLERANCE:.0e})"
        )


def image(options: Namespace, box: Box) -> Tensor:
    """A region of the image that is validated, of shape (N, C, rows, columns)."""
    height, width = options.image_size
    batch, channels = options.batch_size, options.in_channels

    def positions(start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=options.device)

    rows, columns = (positions(side.start, side.stop) for side in box)
    planes = positions(0, batch * channels).view(batch, channels, 1, 1)
    order = (planes * height + rows.view(-1, 1)) * width + columns
    return ((order * 1009) % 2039 - 1019).double()


def wrong_pixels(expected: Sequence[Tensor], received: Sequence[Tensor]) -> int:
    """How many differ, in however small a way."""
    return sum(int((a != b).sum()) for a, b in zip(expected, received, strict=True))


def relative_error(expected: Tensor, found: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-300))


def validate(options: Namespace, layout: Layout, comm: Communicator) -> Verdict:
    """Collective; every rank gets the same verdict."""
    passing = Float16(comm) if options.fp16_allreduce else comm
    mine = image(options, layout.boxes[comm.rank])
    exchange = Exchange(layout, options.halo_len, passing)
    received = exchange.fetch(mine)
    wrong = wrong_pixels([image(options, box) for box in exchange.boxes], received)
    count = sum(strip.numel() for strip in received)
    error = _convolution_error(options, layout, passing, comm, mine)
    found = torch.tensor([count, wrong, error], dtype=torch.float64, device=options.device)
    counts, wrongs, errors = comm.all_gather(found).unbind(1)
    return Verdict(int(counts.sum()), int(wrongs.sum()), float(errors.max()))


@torch.no_grad()
def _convolution_error(
    options: Namespace, layout: Layout, passing: Communicator, comm: Communicator, mine: Tensor
) -> float:
    """Rank 0 makes the whole image, convolves it alone, and compares what all ranks computed."""
    conv = convolution(options).double()
    assert conv.bias is not None
    made = conv(as_tile(mine, layout, passing)).to_local()
    whole = Box.full(layout.size)
    nothing = Box(tuple(Interval(0, 0) for _ in layout.size))
    on_rank_0 = Layout(layout.size, (whole, *[nothing] * (layout.ranks - 1)))
    pixels = image(options, whole) if comm.rank == 0 else None
    error = 0.0
    for start in range(0, options.out_channels, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        found = as_tile(made[:, some].contiguous(), layout, comm).redistribute(on_rank_0).to_local()
        if pixels is not None:
            weight, bias = conv.weight[some], conv.bias[some]
            expected = F.conv2d(pixels, weight, bias, padding=options.halo_len)
            # The largest of all, and NaN if there is one anywhere.
            error = torch.tensor([error, relative_error(expected, found)]).max().item()
    return error
