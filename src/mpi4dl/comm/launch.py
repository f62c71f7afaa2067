"""Finding out where this process is: `init`, `shutdown`, and the default communicator."""

from __future__ import annotations

import atexit
import hashlib
import os

import torch
import torch.distributed as dist

from ..errors import LaunchError
from . import mpi
from .communicator import SERIAL, Communicator, override
from .neighbours import on_one_machine
from .process_group import ProcessGroupCommunicator, is_available

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_tiles: dict[dist.ProcessGroup, Communicator] = {}


def init(backend: str | None = None) -> Communicator:
    """Form the process group from the launcher's environment, or run as one process.

    Under `torchrun` the group has all its ranks. Without a launcher there is one rank and no
    process group. Calling it twice, or after `torch.distributed.init_process_group`, is fine.
    Ranks whose random numbers differ get rank 0's seed, so that models start alike.

    `backend` (or the variable MPI4DL_BACKEND) is NCCL where there are GPUs, one for each rank, and
    Gloo otherwise. Over Gloo, tensors on a GPU pass through the host's memory; several ranks may
    share a GPU then.
    """
    backend = backend or os.environ.get("MPI4DL_BACKEND")
    present = [name for name in _LAUNCHER_VARIABLES if name in os.environ]
    if is_available() or not present:
        return _in_step(communicator())
    missing = [name for name in _LAUNCHER_VARIABLES if name not in os.environ]
    if missing:
        raise LaunchError(
            f"the environment has {', '.join(present)} and lacks {', '.join(missing)}: start with "
            "torchrun, or set all of them, or none of them for a single process"
        )
    if not dist.is_available():
        raise LaunchError("this build of PyTorch has no torch.distributed: install another one")
    use_cuda = torch.cuda.is_available() and backend in (None, "nccl")
    if use_cuda:
        _bind_gpu(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    dist.init_process_group(backend or ("nccl" if use_cuda else "gloo"))
    atexit.register(shutdown)
    return _in_step(communicator())


def _in_step(comm: Communicator) -> Communicator:
    """Give all ranks the random numbers of rank 0, unless they have the same anyway.

    A process without a seed draws one of its own, and every rank would start from other weights.
    """
    if comm.size == 1 or override() is not None:
        return comm
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).digest()[:8]
    seed = torch.initial_seed() % 2**63
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mine = torch.tensor([int.from_bytes(state[:7], "big"), seed], device=device)
    states, seeds = comm.all_gather(mine).cpu().unbind(1)
    if len(set(states.tolist())) > 1:
        torch.manual_seed(int(seeds[0]))
    return comm


def _bind_gpu(local_rank: int) -> None:
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise LaunchError(
            f"local rank {local_rank} has no GPU: this machine shows {count}. "
            "Start at most one rank for each GPU, or set MPI4DL_BACKEND=gloo to share GPUs, or to "
            "use CPUs"
        )
    torch.cuda.set_device(local_rank)


def shutdown() -> None:
    """Leave the process group; done at exit for groups that `init` formed."""
    _tiles.clear()
    if is_available():
        dist.destroy_process_group()


def communicator(group: dist.ProcessGroup | None = None) -> Communicator:
    """The communicator for tiles over `group` (default: all ranks; one process: `Serial`).

    Tiles talk over a group of their own with the same ranks, so that their messages never mix
    with those of DistributedDataParallel. Making it is collective; it happens once a group.
    """
    local = override()
    if local is not None:
        return local
    if not is_available():
        return SERIAL
    over = group if group is not None else dist.group.WORLD
    assert over is not None
    if over not in _tiles:
        _tiles[over] = _of_tiles(over)
    return _tiles[over]


def _of_tiles(group: dist.ProcessGroup) -> Communicator:
    if mpi.serves(group):
        return mpi.connect(group)
    ranks = dist.get_process_group_ranks(group)
    finding = ProcessGroupCommunicator(group, ranks, _connected)
    near = on_one_machine(finding)
    if near is not finding or len(ranks) == 1:
        return near
    if len(ranks) < dist.get_world_size():
        _check_names(finding)
    own = dist.new_group(ranks, use_local_synchronization=len(ranks) < dist.get_world_size())
    return _begun(ProcessGroupCommunicator(own, ranks, _connected))


def _connected(processes: tuple[int, ...]) -> Communicator | None:
    """A communicator with a process group of its own. Every process makes the same calls."""
    if len(processes) > 1:
        group = dist.new_group(sorted(processes))
    if dist.get_rank() not in processes:
        return None
    if len(processes) == 1:
        return SERIAL
    return on_one_machine(_begun(ProcessGroupCommunicator(group, processes, _connected)))


def _begun(comm: ProcessGroupCommunicator) -> ProcessGroupCommunicator:
    """NCCL wants every rank in a group's first operation; an exchange may concern only some."""
    dist.barrier(comm.group)
    return comm


def _check_names(comm: ProcessGroupCommunicator) -> None:
    """PyTorch names a group that only its members make by how many each of them has made."""
    count = len(dist.distributed_c10d._world.pg_names)
    device = "cuda" if dist.get_backend(comm.group) == "nccl" else "cpu"
    counts = comm.all_gather(torch.tensor([count], device=device)).flatten().tolist()
    if len(set(counts)) > 1:
        raise LaunchError(
            f"the ranks of this group are in {counts} process groups, and tiles need another one, "
            "which PyTorch makes only for ranks that are in equally many: make the same groups on "
            "all of them"
        )
