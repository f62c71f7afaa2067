"""What is compared: messages between neighbours, and whole halo exchanges, in every way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from mpi4dl.comm.communicator import Communicator
from mpi4dl.comm.exchange import empty_region, rank_plan, transfer
from mpi4dl.comm.launch import communicator
from mpi4dl.comm.mpi import rendezvous
from mpi4dl.comm.neighbours import on_one_machine
from mpi4dl.comm.process_group import ProcessGroupCommunicator
from mpi4dl.geometry import Box, Layout, Transfer

ROWS = 4  # of a tile whose halo is one row
Way = Callable[[], object]


class Ways:
    """On messages of one size at a time."""

    def __init__(self) -> None:
        rank, size, store = rendezvous()
        dist.init_process_group("mpi4py", store=store, rank=rank, world_size=size)
        if size not in (2, 4):
            raise SystemExit("start 2 or 4 ranks")
        self.world = MPI.COMM_WORLD
        self.peers = [rank ^ 1] if size == 2 else [rank ^ 1, rank ^ 2]
        self.gloo = dist.new_group(backend="gloo")
        over_gloo = ProcessGroupCommunicator(self.gloo, range(size), lambda processes: None)
        self.communicators: dict[str, Communicator] = {
            "mpi": communicator(),
            "gloo": over_gloo,
            "shared": on_one_machine(over_gloo),
        }
        self._requests: list[Any] = []

    def of(self, size: int) -> dict[str, Way]:
        return {**self._messages(size), **self._halos(size)}

    def _messages(self, size: int) -> dict[str, Way]:
        sent = [torch.zeros(size, dtype=torch.uint8) for _ in self.peers]
        arrived = [torch.zeros(size, dtype=torch.uint8) for _ in self.peers]
        leaving = list(zip(self.peers, sent, strict=True))
        arriving = list(zip(self.peers, arrived, strict=True))
        pairs = [
            (p, memory(a), memory(b)) for p, a, b in zip(self.peers, sent, arrived, strict=True)
        ]

        def copies() -> None:
            for a, b in zip(sent, arrived, strict=True):
                b.copy_(a)

        def blocking() -> None:
            for peer, a, b in pairs:
                self.world.Sendrecv(a, peer, 0, b, peer, 0)

        def through_torch(group: dist.ProcessGroup | None) -> Way:
            def exchange() -> None:
                operations = [dist.P2POp(dist.irecv, t, p, group) for p, t in arriving]
                operations += [dist.P2POp(dist.isend, t, p, group) for p, t in leaving]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()

            return exchange

        def through(comm: Communicator) -> Way:
            return lambda: comm.start(leaving, arriving).wait()

        return {
            "memcpy": copies,
            "blocking": blocking,
            "persistent": self._persistent(leaving, arriving),
            "torch mpi4py": through_torch(None),
            "torch gloo": through_torch(self.gloo),
            **{f"ours {name}": through(comm) for name, comm in self.communicators.items()},
        }

    def _halos(self, size: int) -> dict[str, Way]:
        """An image that is cut into rows of tiles; a tile gets one row, of `size` bytes, from
        either side, and lies with them in one tensor afterwards."""
        rank, ranks, width = self.world.rank, self.world.size, size // 4
        layout = Layout.grid((ranks * ROWS, width), (ranks, 1))
        image = Box.full(layout.size)
        wanted = [
            Box.of((max(0, r * ROWS - 1), min(ranks * ROWS, (r + 1) * ROWS + 1)), (0, width))
            for r in range(ranks)
        ]
        moves = Transfer(layout, tuple(box.intersect(image) for box in wanted))
        tile, dims = torch.zeros(1, 1, ROWS, width), (-2, -1)
        plan = rank_plan(moves, rank, dims, tile.ndim)
        leaving = [(peer, tile[where]) for peer, where in plan.sends]
        arriving = [(peer, torch.zeros(1, 1, 1, width)) for peer, _ in plan.receives]
        exchange = self._persistent(leaving, arriving)
        assert plan.keep is not None
        source, target = plan.keep

        def by_hand() -> Tensor:
            out = empty_region(tile, dims, plan.wanted)
            out[target] = tile[source]
            exchange()
            for (_, where), (_, buffer) in zip(plan.receives, arriving, strict=True):
                out[where] = buffer
            return out

        def through(comm: Communicator) -> Way:
            return lambda: transfer(tile, moves, dims, comm)

        ours = {f"halo {name}": through(comm) for name, comm in self.communicators.items()}
        return {"by hand": by_hand, **ours}

    def _persistent(
        self, leaving: Sequence[tuple[int, Tensor]], arriving: Sequence[tuple[int, Tensor]]
    ) -> Way:
        requests = [self.world.Recv_init(memory(t), peer) for peer, t in arriving]
        requests += [self.world.Send_init(memory(t), peer) for peer, t in leaving]
        self._requests += requests

        def exchange() -> None:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)

        return exchange

    def free(self) -> None:
        """What was made for one size."""
        for request in self._requests:
            request.Free()
        self._requests.clear()

    def microseconds(self, way: Way, repeats: int) -> float:
        """Of one exchange, on the slowest rank."""
        self.world.Barrier()
        started = time.perf_counter()
        for _ in range(repeats):
            way()
        mine = (time.perf_counter() - started) / repeats * 1e6
        return float(self.world.allreduce(mine, MPI.MAX))


def memory(tensor: Tensor) -> Any:
    assert tensor.is_contiguous()
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
