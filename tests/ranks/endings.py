"""Run by mpirun: rank 1 does not do its part, and the others must say so, soon, and end."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from backend import started

import mpi4dl
from mpi4dl.comm.launch import communicator


def killed(waiting):
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(waiting):
    sys.exit(0)


def raises(waiting):
    raise RuntimeError("rank 1 has a mistake of its own")


def silent(waiting):
    time.sleep(60)


def sends_more(waiting):
    for peer in (0, 2):
        dist.send(torch.ones(5), peer, tag=3)


def sends_less(waiting):
    for peer in (0, 2):
        dist.send(torch.ones(3), peer, tag=3)


def receiving(size):
    dist.recv(torch.empty(4), 1, tag=3)


def adding_up(size):
    dist.all_reduce(torch.ones(4))


def with_a_future(size):
    dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()


def exchanging(size):
    communicator().start([], [(1, torch.empty(4))]).wait()


def meeting(size):
    dist.group.WORLD.monitored_barrier(timedelta(seconds=2))


def main():
    ending, waiting = (globals()[name] for name in sys.argv[1:3])
    rank, size = started("mpi4py", seconds=3 if ending is silent else 60)
    mpi4dl.init()
    dist.barrier()
    if rank == 1:
        ending(waiting)
        return
    begun = time.monotonic()
    try:
        waiting(size)
    finally:
        print(f"rank {rank} knew after {time.monotonic() - begun:.1f} s", flush=True)


main()
