"""Run by torchrun: what ranks send each other arrives, whichever way it goes."""

import os
import sys
import time

import pytest
import torch
import torch.distributed as dist
from backend import started

import mpi4dl
from mpi4dl.comm.mpi.communicator import MpiCommunicator
from mpi4dl.comm.neighbours import NeighbourCommunicator
from mpi4dl.comm.process_group import ProcessGroupCommunicator

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
KINDS = {
    "shared": NeighbourCommunicator,
    "gloo": ProcessGroupCommunicator,
    "mpi": MpiCommunicator,
}


def values(rank, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-40, 40, shape, generator=generator).to(dtype)


def exchanges(comm):
    """More than the arena first holds, to everybody, waited for in the opposite order."""
    peers = [rank for rank in range(comm.size) if rank != comm.rank]
    for rows in (1, 7, 300_000):
        rounds = []
        for turn in range(3):
            mine = values(comm.rank + turn, 4, rows).t()  # not contiguous
            arriving = [(p, torch.empty(rows, 4, dtype=torch.float64)) for p in peers]
            rounds.append((turn, arriving, comm.start([(p, mine) for p in peers], arriving)))
        for turn, arriving, pending in reversed(rounds):
            pending.wait()
            for peer, buffer in arriving:
                assert torch.equal(buffer, values(peer + turn, 4, rows).t())


def reductions(comm):
    for dtype in DTYPES:
        for shape in ((), (0,), (3, 5), (257, 129), (3_000_001,)):
            parts = [values(rank, *shape, dtype=dtype) for rank in range(comm.size)]
            together = torch.stack(parts)
            for op, expected in (
                ("sum", together.double().sum(0).to(dtype)),
                ("max", together.amax(0)),
                ("min", together.amin(0)),
            ):
                mine = parts[comm.rank].clone()
                comm.all_reduce(mine, op)
                assert torch.equal(mine, expected), (dtype, shape, op)
            assert torch.equal(comm.all_gather(parts[comm.rank]), together)
    strided = values(comm.rank, 6, 4)[:, ::2]
    comm.all_reduce(strided)
    assert torch.equal(strided, sum(values(r, 6, 4)[:, ::2] for r in range(comm.size)))
    rounded = torch.rand(1000, generator=torch.Generator().manual_seed(comm.rank))
    comm.all_reduce(rounded)
    everyone = comm.all_gather(rounded)
    assert (everyone == everyone[0]).all(), "a sum must have the same bits on all ranks"


def many_unread(comm):
    """As many messages as fit, before any is read; then again over the same memory."""
    peer = (comm.rank + 1) % comm.size
    source = (comm.rank - 1) % comm.size
    for _ in range(2):
        pending = []
        for number in range(500):
            buffer = torch.empty(1, dtype=torch.int64)
            sent = torch.tensor([number])
            pending.append((number, buffer, comm.start([(peer, sent)], [(source, buffer)])))
        for number, buffer, waiting in pending:
            waiting.wait()
            assert buffer.item() == number


def wrong_size(comm):
    """A message of another size than was expected is an error that says so."""
    peer, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with pytest.raises(RuntimeError, match=r"expects 16 bytes .* sent 12"):
        comm.start([(peer, torch.ones(3))], [(source, torch.ones(4))]).wait()


def subgroups(comm):
    """In another order, and twice with other uses, whose messages do not mix."""
    backwards = list(reversed(range(comm.size)))
    one, two = comm.subgroup(backwards), comm.subgroup(backwards, "other")
    assert one is comm.subgroup(backwards)
    assert one.rank == comm.size - 1 - comm.rank
    peer, source = (one.rank + 1) % one.size, (one.rank - 1) % one.size
    first, second = torch.empty(2), torch.empty(2)
    groups = ((1.0, one), (2.0, two))
    sends = [group.start([(peer, torch.full((2,), k))], []) for k, group in groups]
    two.start([], [(source, second)]).wait()
    one.start([], [(source, first)]).wait()
    for sent in sends:
        sent.wait()
    assert first.tolist() == [1, 1]
    assert second.tolist() == [2, 2]
    assert (comm.subgroup([0]) is None) == (comm.rank != 0)


def same_addresses(comm):
    """The same buffers again and again, also while they are still under way."""
    peer, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (3, 100_000):
        mine, arrived = torch.empty(size), torch.empty(size)
        for turn in range(50):
            mine.fill_(turn + comm.rank)
            comm.start([(peer, mine)], [(source, arrived)]).wait()
            assert (arrived == turn + source).all()
    twice = [comm.start([(peer, mine)], []) for _ in range(2)]
    for _ in range(2):
        comm.start([], [(source, arrived)]).wait()
    for sent in twice:
        sent.wait()


def left_alone(comm):
    """A large exchange arrives while everybody computes, and when it was waited for before."""
    peer, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, arrived = torch.full((1_000_000,), comm.rank + 1.0), torch.empty(1_000_000)
    for waits in (False, True, True, False):
        arrived.zero_()
        pending = comm.start([(peer, mine)], [(source, arrived)])
        deadline = time.monotonic() + 10
        while not (waits or arrived[-1]) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert waits or arrived[-1] == source + 1
        pending.wait()
        assert (arrived == source + 1).all()


def death(comm):
    """A rank that ends is missed by those that wait for it."""
    dist.barrier()
    if comm.rank == 0:
        sys.stdout.flush()
        os._exit(0)
    with pytest.raises(mpi4dl.LaunchError, match="rank 0 has ended"):
        comm.start([], [(0, torch.empty(1))]).wait()
    print(f"rank {comm.rank} noticed", flush=True)
    os._exit(0)


def main():
    if sys.argv[1] == "mpi":
        started("mpi4py")
    comm = mpi4dl.init()
    assert type(comm) is KINDS[sys.argv[1]], comm
    exchanges(comm)
    reductions(comm)
    many_unread(comm)
    print(f"rank {comm.rank}: all arrived", flush=True)
    if sys.argv[1] != "gloo":
        wrong_size(comm)
    if sys.argv[1] == "mpi":
        subgroups(comm)
        same_addresses(comm)
        left_alone(comm)
        dist.destroy_process_group()
    if sys.argv[1] == "shared":
        death(comm)


main()
