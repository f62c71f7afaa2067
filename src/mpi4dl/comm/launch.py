"""Finding out where this process is: `init`, `shutdown`, and the default communicator."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys

import torch
import torch.distributed as dist

from ..errors import LaunchError
from . import lifeline, mpi
from .communicator import SERIAL, Communicator, override
from .launchers import TORCHRUN, Started, started_by
from .local_ranks import run_local_ranks
from .neighbours import NeighbourCommunicator, on_one_machine
from .process_group import ProcessGroupCommunicator, close_all, is_available
from .rendezvous import has_mpi4py, store_for, torchruns_store, use_loopback

_tiles: dict[dist.ProcessGroup, Communicator] = {}


def init(backend: str | None = None, ranks: int | None = None) -> Communicator:
    """Find out where this process is, and form the process group with the others.

    Under torchrun, mpirun (Open MPI, MPICH, Intel MPI, MVAPICH) or srun the group has all their
    ranks. Without a launcher there is one rank; or, if `ranks` (or the variable MPI4DL_RANKS) says
    how many, this program is started that many times on this machine, and this call does not
    return here. Calling it twice, or after `torch.distributed.init_process_group`, is fine. Ranks
    whose random numbers differ get rank 0's seed, so that models start alike.

    `backend` (or the variable MPI4DL_BACKEND) is NCCL where there are GPUs, one for each rank; else
    MPI, if that started the ranks and mpi4py is there; else Gloo. Over Gloo, tensors on a GPU pass
    through the host's memory; several ranks may share a GPU then.
    """
    if override() is not None or is_available():
        return _in_step(communicator())
    backend = backend or os.environ.get("MPI4DL_BACKEND")
    started = started_by(os.environ)
    if started is None:
        _start_ranks(ranks)
        return SERIAL
    if not dist.is_available():
        raise LaunchError("this build of PyTorch has no torch.distributed: install another one")
    if started.on_one_machine:
        use_loopback()
    chosen = _backend(backend, started)
    if chosen == "nccl":
        _bind_gpu(started)
    elastic = started.launcher is TORCHRUN and "TORCHELASTIC_RUN_ID" in os.environ
    if started.launcher is TORCHRUN and not elastic:
        dist.init_process_group(chosen)
    else:
        store = torchruns_store() if elastic else store_for(started)
        dist.init_process_group(chosen, store=store, rank=started.rank, world_size=started.size)
    atexit.register(shutdown)
    comm = _in_step(communicator())
    if started.rank == 0 and "MPI4DL_QUIET" not in os.environ:
        print(_found(started, chosen, comm), file=sys.stderr, flush=True)
    return comm


def _start_ranks(ranks: int | None) -> None:
    """Without a launcher, be one: this program again, as so many ranks."""
    text = os.environ.get("MPI4DL_RANKS", "")
    if ranks is None and text:
        if not text.isdecimal() or int(text) < 1:
            raise LaunchError(f"MPI4DL_RANKS is {text!r}; it must be a number of ranks")
        ranks = int(text)
    if ranks is None or ranks == 1:
        return
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks: there must be at least 1")
    if not sys.orig_argv[1:] or sys.orig_argv[-1] == "-":
        raise LaunchError(
            f"this program cannot be started again as {ranks} ranks, for it is no file: put it "
            f"into one, or start it with a launcher such as mpi4dl run --ranks {ranks} script.py"
        )
    sys.exit(run_local_ranks(ranks, [sys.executable, *sys.orig_argv[1:]]))


def backends() -> list[str]:
    """Those of this PyTorch that move data."""
    names = [name for name in dist.Backend.backend_list if dist.is_backend_available(name)]
    return [name for name in names if name not in ("undefined", "fake")]


def check_backend(asked: str | None) -> None:
    """Refuse a backend that this PyTorch does not have. None: whatever fits."""
    if asked is not None and not dist.is_backend_available(asked):
        raise LaunchError(f"there is no backend {asked!r} here: use one of {', '.join(backends())}")


def _backend(asked: str | None, started: Started) -> str:
    check_backend(asked)
    if asked is not None:
        return asked
    if torch.cuda.is_available():
        return "nccl"
    if started.launcher.mpi and has_mpi4py() and dist.is_backend_available("mpi4py"):
        return "mpi4py"
    return "gloo"


def _found(started: Started, backend: str, comm: Communicator) -> str:
    """For the user to see, in one line."""
    size, local = started.size, started.local_size
    machines = "on this machine" if started.on_one_machine else ""
    if local and not started.on_one_machine:
        machines = f"on {-(-size // local)} machines, {local} on this"
    devices = "one GPU each" if backend == "nccl" else f"{torch.get_num_threads()} threads each"
    near = " and shared memory" if isinstance(comm, NeighbourCommunicator) else ""
    launcher = os.environ.get("MPI4DL_LAUNCHER", started.launcher.name)
    ranks = " ".join(f"{size} {'rank' if size == 1 else 'ranks'} {machines}".split())
    return f"mpi4dl: {ranks} ({launcher}), {backend}{near}, {devices}"


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


def _bind_gpu(started: Started) -> None:
    count = torch.cuda.device_count()
    local_rank = started.rank if started.local_rank is None else started.local_rank
    if local_rank >= count:
        raise LaunchError(
            f"local rank {local_rank} has no GPU: this machine shows {count}. "
            "Start at most one rank for each GPU, or set MPI4DL_BACKEND=gloo to share GPUs, or to "
            "use CPUs"
        )
    torch.cuda.set_device(local_rank)


def shutdown() -> None:
    """Leave the process group; done at exit for groups that `init` formed."""
    lifeline.close()
    _tiles.clear()
    close_all()
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
