"""The blocks of a file that a region touches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...geometry import Box, Interval


def touched(box: Box, block: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Box]]:
    """Row and column of each block, and which pixels it has; the last ones may be beyond the
    image."""
    if box.empty:
        return
    spans = (range(i.start // n, -(-i.stop // n)) for i, n in zip(box, block, strict=True))
    for row, column in product(*spans):
        yield (
            (row, column),
            Box(
                tuple(
                    Interval(k * n, (k + 1) * n) for k, n in zip((row, column), block, strict=True)
                )
            ),
        )


def pixels_touched(box: Box, block: tuple[int, int], size: tuple[int, int]) -> int:
    """Of whole blocks, as far as there is an image."""
    whole = Box.full(size)
    return sum(b.intersect(whole).volume for _, b in touched(box, block))
