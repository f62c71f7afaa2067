"""What training needs from a group of ranks: exchange, all-reduce, all-gather. Nothing else.

Implementations: `Serial` (one process), `ProcessGroupCommunicator` (torch.distributed),
`NeighbourCommunicator` (shared memory of one machine), `MpiCommunicator` (MPI directly),
`ThreadCommunicator` (ranks that are threads of one process, for tests and for looking around) and
`Nobody` (dry runs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

import torch
from torch import Tensor

ReduceOp = Literal["sum", "max", "min"]
Message = tuple[int, Tensor]  # (peer, what is sent; or the contiguous buffer it arrives in)


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> None: ...


class Communicator(Protocol):
    """Every call is collective: all ranks make the same calls in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __hash__(self) -> int: ...

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        """Some of the ranks, in this order; None for the others. Every rank makes the same calls.

        Made once, then kept. Messages for another `use` never mix with these.
        """
        ...

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """Begin to send and receive. At most one message for each pair of ranks and direction.

        What is sent may change as soon as this returns, unless the transport is NCCL, Gloo or
        MPI: there, when the wait is over. Exchanges may be waited for in any order.
        """
        ...

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        """Combine in place; every rank ends with the same bits."""
        ...

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        """Begin to add up; nobody has to be there yet. Done when the wait is over."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Equal shapes from all ranks, stacked along a new first dimension in rank order."""
        ...


class Subgroups:
    """What `subgroup` gives, made once for every group of ranks and use."""

    def __init__(self, rank: int, make: Callable[[tuple[int, ...], str], Communicator]) -> None:
        self._rank, self._make = rank, make
        self._made: dict[tuple[tuple[int, ...], str], Communicator] = {}

    def __call__(self, ranks: Sequence[int], use: str) -> Communicator | None:
        if self._rank not in ranks:
            return None
        key = (tuple(ranks), use)
        if key not in self._made:
            self._made[key] = SERIAL if len(ranks) == 1 else self._make(*key)
        return self._made[key]


class Done:
    """The exchange that was finished before it began."""

    def wait(self) -> None:
        return None


class Serial:
    """One rank that talks to nobody."""

    rank = 0
    size = 1

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator:
        return self

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        if sends or receives:
            raise RuntimeError("a single rank has nobody to exchange with")
        return Done()

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        return None

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        return Done()

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack([tensor])


class Nobody:
    """The communicator of a dry run: one of so many ranks, and no messages."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def subgroup(self, ranks: Sequence[int], use: str = "") -> None:
        return None

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        return Done()

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        return None

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        return Done()

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.new_empty((self.size, *tensor.shape))


SERIAL = Serial()
_current: ContextVar[Communicator | None] = ContextVar("mpi4dl_communicator", default=None)


def override() -> Communicator | None:
    """The communicator that `use` put in place for this thread, if any."""
    return _current.get()


@contextmanager
def use(communicator: Communicator) -> Iterator[Communicator]:
    """Make `communicator` the default one of this thread while the block runs."""
    token = _current.set(communicator)
    try:
        yield communicator
    finally:
        _current.reset(token)
