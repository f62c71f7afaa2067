"""Every reduction on every type, in terms of what MPI computes.

Numbers of 16 bits and fewer are summed in float32, and rounded once. Truth values are bytes of 0
and 1, of which a sum is a maximum and a product a minimum. A mean is a sum, divided afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import UnsupportedOperator
from .buffers import incoming, outgoing, settled, store
from .library import datatypes, mpi

_BITWISE = ("BAND", "BOR", "BXOR")
_OF_TRUTH = {"SUM": "MAX", "PRODUCT": "MIN", "BAND": "MIN", "BOR": "MAX"}


@dataclass(frozen=True)
class Reduction:
    """An operation as PyTorch names it, on tensors of one dtype, over `size` ranks."""

    name: str
    dtype: torch.dtype
    size: int

    @property
    def op(self) -> Any:
        """MPI's."""
        name = _OF_TRUTH.get(self.name, self.name) if self.dtype == torch.bool else self.name
        return _operations()[name]

    @property
    def computed(self) -> torch.dtype:
        if self.dtype == torch.bool:
            return torch.uint8
        if self.dtype.is_floating_point and self.dtype.itemsize < 4:
            return torch.float32
        return self.dtype

    def operand(self, tensor: Tensor, copied: bool = False) -> Tensor:
        """The values as MPI is to read them; with `copied`, as it may overwrite them."""
        values = tensor.detach()
        if self.dtype == torch.bool:
            values = values.view(torch.uint8) if values.is_contiguous() else values.byte()
        read = outgoing(values.to(self.computed))
        return read.clone() if copied and read.data_ptr() == tensor.data_ptr() else read

    def target(self, tensor: Tensor) -> tuple[Tensor, Callable[[], None] | None]:
        """Where MPI is to write, and what then makes it the result."""
        if self.computed == self.dtype:
            written, bring = incoming(tensor)
            if self.name != "AVG":
                return written, bring
        else:
            written = torch.empty(tensor.shape, dtype=self.computed)
        return written, lambda: self.deliver(written, tensor)

    def deliver(self, written: Tensor, tensor: Tensor) -> None:
        if self.name == "AVG":
            whole = not written.dtype.is_floating_point and not written.dtype.is_complex
            settled(written.div_(self.size, rounding_mode="trunc" if whole else None))
        if written.data_ptr() != tensor.data_ptr() or written.dtype != tensor.dtype:
            store(written, tensor)


def reduction(op: Any, dtype: torch.dtype, size: int) -> Reduction:
    """The one that `op`, a ReduceOp or what stands for it, means; refused if it means nothing."""
    name = op if isinstance(op, str) else _name(op)
    made = Reduction(name, dtype, size)
    numbers = dtype.is_floating_point or dtype.is_complex
    wrong = (
        name not in _names()
        or made.computed not in datatypes()
        or (numbers and name in _BITWISE)
        or (dtype.is_complex and name in ("MIN", "MAX"))
        or (dtype == torch.bool and name == "AVG")
    )
    if wrong:
        raise UnsupportedOperator(
            f"the MPI backend has no reduction {name} of {dtype}: use one of "
            f"{', '.join(_names())}; bitwise ones are for integers, and MIN and MAX for what is "
            "ordered"
        )
    return made


def _name(op: Any) -> str:
    return next((name for name in _names() if op == getattr(dist.ReduceOp, name)), str(op))


def _names() -> tuple[str, ...]:
    return ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *_BITWISE)


@lru_cache(maxsize=1)
def _operations() -> dict[str, Any]:
    MPI = mpi()
    return {
        "SUM": MPI.SUM, "AVG": MPI.SUM, "PRODUCT": MPI.PROD, "MIN": MPI.MIN, "MAX": MPI.MAX,
        "BAND": MPI.BAND, "BOR": MPI.BOR, "BXOR": MPI.BXOR,
    }  # fmt: skip
