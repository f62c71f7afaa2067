"""Boxes, layouts, windows and transfers: which rank holds which region of which tensor.

Plain integers, no tensors, no processes. Everything above asks this floor.
"""

from .box import Box, Interval
from .layout import Layout, square_grid
from .transfer import Move, Transfer
from .window import (
    ComposedWindow,
    SlidingWindow,
    TableWindow,
    TransposedWindow,
    WholeWindow,
    Window,
    check_output,
    conv_size,
    pool_size,
    transposed_size,
)

__all__ = [
    "Box",
    "ComposedWindow",
    "Interval",
    "Layout",
    "Move",
    "SlidingWindow",
    "TableWindow",
    "Transfer",
    "TransposedWindow",
    "WholeWindow",
    "Window",
    "check_output",
    "conv_size",
    "pool_size",
    "square_grid",
    "transposed_size",
]
