"""What travels from one layer of a model to the next."""

from torch import Tensor

Flow = Tensor | tuple[Tensor, ...]
"""One tensor, or several that belong together (an output and its skip connections)."""


def as_tuple(flow: Flow) -> tuple[Tensor, ...]:
    """The tensors of a flow; a lone tensor becomes a tuple of one."""
    return (flow,) if isinstance(flow, Tensor) else tuple(flow)
