"""MPI for a PyTorch that was built without it: a torch.distributed backend over mpi4py.

    dist.init_process_group("mpi4py", store=store, rank=rank, world_size=size)

with `rank, size, store = rendezvous()`, under any `mpirun`. `mpi` is another name of the backend
unless PyTorch has one of its own. Importing this registers the names; mpi4py itself, which starts
MPI, is imported when a group is made.

    library         mpi4py, and PyTorch's types in MPI's words
    world           who takes part, where they run, and whether they still do
    task            requests under way: polled, waited for with patience, failing with names
    progress        the thread that advances what nobody waits for
    buffers         tensors as memory that MPI reads and writes, without copies where possible
    reductions      every operation on every type
    operations      each collective as MPI requests, and what is left to do after them
    work            a task as torch.distributed sees it
    process_group   the backend
    communicator    the Communicator of tiles, over MPI directly
"""

from .registration import NAMES, connect, register, serves
from .world import rendezvous

__all__ = ["NAMES", "connect", "register", "rendezvous", "serves"]

register()
