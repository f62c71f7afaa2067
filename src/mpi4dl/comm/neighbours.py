"""Ranks that are processes of one machine: a communicator over shared memory.

Over Gloo's sockets two busy processes take about a millisecond to exchange one number, because
whoever is spoken to has to be woken; here it is some microseconds. The process group stays: over
it the ranks find each other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .communicator import Communicator, Done, Message, Pending, ReduceOp, Subgroups
from .process_group import ProcessGroupCommunicator
from .shared_memory import Neighbour, PostOffice, Wait, machine, supported

T = TypeVar("T")
_PIECE = 2**22  # bytes that are reduced at once: what is under way should fit the cache
_LARGE = 2**16  # bytes from which each of several ranks reduces a share, and not everything
_HALF = (torch.bfloat16, torch.float16)
_COMBINE: dict[ReduceOp, Callable[..., Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class _Receiving:
    def __init__(self, owner: NeighbourCommunicator, receives: Sequence[Message]) -> None:
        # Numbered now, so that what is waited for later may be waited for in any order.
        self._owner = owner
        self._receives = [(peer, owner.expect(peer), buffer) for peer, buffer in receives]

    def wait(self) -> None:
        for peer, number, buffer in self._receives:
            self._owner.receive(peer, number, buffer)
        self._receives.clear()


class _Finishing:
    """Something that is begun, and done by whoever waits for it."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


class NeighbourCommunicator:
    """The ranks of a process group that all run on this machine. Made by `on_one_machine`."""

    def __init__(
        self, rank: int, size: int, office: PostOffice, offices: Sequence[tuple[int, int]]
    ) -> None:
        self.rank, self.size = rank, size
        self._office = office
        self._others = {
            rank: Neighbour(process, file, self.size, rank, self.rank)
            for rank, (process, file) in enumerate(offices)
            if rank != self.rank
        }
        self._subgroups = Subgroups(rank, self._subgroup)
        crowded = self.size > len(os.sched_getaffinity(0))
        self._wait = Wait(crowded, lambda peer: self._others[peer].alive())

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        return self._subgroups(ranks, use)

    def _subgroup(self, ranks: tuple[int, ...], use: str) -> NeighbourCommunicator:
        """Nobody else has to know of it: its members tell each other where their offices are."""
        office = PostOffice(len(ranks))
        address = torch.tensor([os.getpid(), office.file])
        offices = {rank: torch.empty_like(address) for rank in ranks if rank != self.rank}
        self.start([(rank, address) for rank in offices], list(offices.items())).wait()
        offices[self.rank] = address
        in_order = [(int(p), int(f)) for p, f in (offices[rank].tolist() for rank in ranks)]
        return NeighbourCommunicator(ranks.index(self.rank), len(ranks), office, in_order)

    def expect(self, peer: int) -> int:
        """The number of the next message from `peer`."""
        return self._others[peer].expect()

    def receive(self, peer: int, number: int, buffer: Tensor) -> None:
        self._others[peer].receive(number, buffer, self._wait)

    def read(self, peer: int, number: int, like: Tensor, use: Callable[[Tensor], object]) -> None:
        self._others[peer].read(number, like, self._wait, use)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        for peer, tensor in sends:
            self._office.post(tensor, [peer], self._wait)
        return _Receiving(self, receives) if receives else Done()

    def all_gather(self, tensor: Tensor) -> Tensor:
        out = tensor.new_empty((self.size, *tensor.shape))
        parts = out.unbind()
        parts[self.rank].copy_(tensor)
        self._exchange(tensor, [(rank, parts[rank]) for rank in self._others])
        return out

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        flat = self._flat(tensor)
        for piece in self._pieces(flat):  # each before the next: what is under way fits the cache
            self._combine(piece, self._announce(piece), op)
        self._put_back(flat, tensor)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        flat = self._flat(tensor)
        announced = [(piece, self._announce(piece)) for piece in self._pieces(flat)]

        def finish() -> None:
            for piece, numbers in announced:
                self._combine(piece, numbers, "sum")
            self._put_back(flat, tensor)

        return _Finishing(finish)

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(-1).cpu()

    def _put_back(self, flat: Tensor, tensor: Tensor) -> None:
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))

    def _pieces(self, flat: Tensor) -> Sequence[Tensor]:
        most = _PIECE // flat.element_size()
        return flat.split(most) if flat.numel() > most else (flat,)

    def _announce(self, piece: Tensor) -> dict[int, int]:
        """Show it to the others. The numbers of their messages about the same."""
        self._office.post(piece, list(self._others), self._wait)
        return {rank: self.expect(rank) for rank in self._others}

    def _combine(self, piece: Tensor, numbers: dict[int, int], op: ReduceOp) -> None:
        if self.size == 2 and piece.dtype not in _HALF:
            # In place: of two values it does not matter which one comes first.
            ((peer, number),) = numbers.items()
            self.read(peer, number, piece, lambda other: _COMBINE[op](piece, other, out=piece))
            return
        if self.size == 2 or piece.numel() * piece.element_size() < _LARGE:
            piece.copy_(self._combined(piece, numbers, slice(None), op))
            return
        cuts = [rank * len(piece) // self.size for rank in range(self.size + 1)]
        shares = [slice(a, b) for a, b in pairwise(cuts)]
        mine = self._combined(piece, numbers, shares[self.rank], op)
        piece[shares[self.rank]] = mine
        self._exchange(mine, [(rank, piece[shares[rank]]) for rank in self._others])

    def _exchange(self, mine: Tensor, receives: Sequence[Message]) -> None:
        self._office.post(mine, list(self._others), self._wait)
        _Receiving(self, receives).wait()

    def _combined(
        self, piece: Tensor, numbers: dict[int, int], share: slice, op: ReduceOp
    ) -> Tensor:
        """A share of everybody's values, combined in rank order: the same bits on all ranks."""
        wide = torch.float32 if piece.dtype in _HALF else piece.dtype
        totals: list[Tensor] = []

        def add(value: Tensor) -> None:
            value = value[share].to(wide)
            totals[:] = [_COMBINE[op](totals[0], value) if totals else value.clone()]

        for rank in range(self.size):
            if rank == self.rank:
                add(piece)
            else:
                self.read(rank, numbers[rank], piece, add)
        return totals[0].to(piece.dtype)

    def __repr__(self) -> str:
        return f"NeighbourCommunicator(rank {self.rank} of {self.size})"


def on_one_machine(comm: ProcessGroupCommunicator) -> Communicator:
    """`comm` itself, or shared memory in its place if all of its ranks can use it. Collective.

    The variable MPI4DL_SHARED_MEMORY=0, on any rank, keeps Gloo for all of them.
    """
    if comm.size == 1 or dist.get_backend(comm.group) != "gloo":
        return comm
    wanted = supported() and os.environ.get("MPI4DL_SHARED_MEMORY", "1") != "0"
    office = _attempt(lambda: PostOffice(comm.size)) if wanted else None
    here = int.from_bytes(hashlib.sha256(machine().encode()).digest()[:7], "big") if office else 0
    table = comm.all_gather(torch.tensor([here, os.getpid(), office.file if office else -1]))
    made: NeighbourCommunicator | None = None
    if office is not None and bool((table[:, 0] == here).all()):
        kept, offices = office, [(process, file) for _, process, file in table.tolist()]
        made = _attempt(lambda: NeighbourCommunicator(comm.rank, comm.size, kept, offices))
    everybody = torch.tensor([made is not None], dtype=torch.int32)
    comm.all_reduce(everybody, "min")
    return made if made is not None and everybody.item() else comm


def _attempt(make: Callable[[], T]) -> T | None:
    """What `make` makes; None where the machine does not allow it, as containers may not."""
    try:
        return make()
    except OSError:
        return None
