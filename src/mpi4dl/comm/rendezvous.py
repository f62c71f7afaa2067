"""Where ranks find each other before there is a process group."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ..errors import LaunchError
from .launchers import SRUN, Started, first_host

LOOPBACK = "127.0.0.1"


def seconds() -> float:
    """How long ranks wait for each other at the start."""
    text = os.environ.get("MPI4DL_TIMEOUT", "300")
    try:
        return float(text)
    except ValueError:
        raise LaunchError(f"MPI4DL_TIMEOUT is {text!r}; it must be a number of seconds") from None


def hosted_store(size: int) -> TCPStore:
    """A store in this process for ranks of this machine: it listens to nobody else."""
    return _listening(LOOPBACK, 0, size, wait=False)


def store_for(started: Started) -> TCPStore:
    """The store of a launcher that has none itself. Collective."""
    where = "an address that rank 0 was to tell"
    try:
        if started.launcher.mpi and started.port is None and has_mpi4py():
            return _over_mpi(started)
        address, port = _address(started), _port(started)
        where = f"{address}:{port}"
        if started.rank == 0:
            return _listening(_reachable(started.on_one_machine), port, started.size)
        wait = timedelta(seconds=seconds())
        return TCPStore(address, port, started.size, False, timeout=wait)
    except (RuntimeError, OSError) as error:  # PyTorch's own are RuntimeErrors
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(
            f"rank {started.rank} of {started.size} ({started.launcher.name}) could not meet the "
            f"others at {where} within {seconds():.0f} s: {error}. See that as many ranks run as "
            "were asked for, or set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a port "
            "that is free there"
        ) from error


def torchruns_store() -> Store:
    """A part of torchrun's store that nobody has written to before. Collective.

    The agent's store outlives the ranks that it restarts, so new ranks would find the addresses of
    those that have ended. (Nor do agents of several machines count restarts alike.) So every rank
    says hello with a word of its own, and the first one answers to that word with a prefix.
    """
    store, rank, size = next(rendezvous("env://"))
    wait = seconds()
    store.set_timeout(timedelta(seconds=wait))
    try:
        prefix = _answered(store, rank) if rank else _answering(store, size, wait)
    except RuntimeError as error:  # PyTorch's own
        raise LaunchError(
            f"rank {rank} of {size} (torchrun) could not meet the others within {wait:.0f} s: "
            f"{error}. See that all machines run as many ranks as were asked for"
        ) from error
    return PrefixStore(prefix, store)


def _answered(store: Store, rank: int) -> str:
    mine = secrets.token_hex(8)
    store.set(f"mpi4dl/hello/{rank}", mine)
    prefix: str = store.get(f"mpi4dl/answer/{mine}").decode()
    store.set(f"{prefix}/here/{rank}", "")
    return prefix


def _answering(store: Store, size: int, wait: float) -> str:
    """Also to words of ranks that have ended, which costs nothing."""
    prefix = f"mpi4dl/{secrets.token_hex(8)}"
    answered: dict[int, bytes] = {}
    missing, until = set(range(1, size)), time.monotonic() + wait
    while missing:
        for rank in tuple(missing):
            hello = f"mpi4dl/hello/{rank}"
            if store.check([hello]) and (word := store.get(hello)) != answered.get(rank):
                store.set(f"mpi4dl/answer/{word.decode()}", prefix)
                answered[rank] = word
            if store.check([f"{prefix}/here/{rank}"]):
                missing.discard(rank)
        if missing and time.monotonic() > until:
            raise LaunchError(f"ranks {sorted(missing)[:8]} are missing")
        time.sleep(0.005)
    return prefix


def has_mpi4py() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def _over_mpi(started: Started) -> TCPStore:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (started.rank, started.size):
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        raise LaunchError(
            f"{started.launcher.name} says that this is rank {started.rank} of {started.size}, and "
            f"mpi4py, with {library}, that it is {world.rank} of {world.size}: start with the "
            "mpirun of that library, or name the launcher's libmpi in MPI4PY_LIBMPI"
        )
    return told_over_mpi(world, started.on_one_machine)


def told_over_mpi(world: Any, on_one_machine: bool) -> TCPStore:
    """MPI knows its ranks already: rank 0 takes any free port, and tells the others. Collective."""
    reachable = _reachable(on_one_machine)
    store = _listening(reachable, 0, world.size, False) if world.rank == 0 else None
    told = (socket.gethostname(), store.port) if store else None
    host, port = world.bcast(told)
    if store is not None:
        return store
    wait = timedelta(seconds=seconds())
    return TCPStore(LOOPBACK if on_one_machine else host, port, world.size, False, timeout=wait)


def _reachable(on_one_machine: bool) -> str:
    """Where rank 0 listens: nowhere outside of this machine, if nobody is there."""
    return LOOPBACK if on_one_machine else "0.0.0.0"


def _listening(address: str, port: int, size: int, wait: bool = True) -> TCPStore:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise LaunchError(
            f"port {port} is in use on this machine ({error.strerror}): set MASTER_PORT to another"
        ) from error
    listener.listen()
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK if address == LOOPBACK else socket.gethostname(),
        port,
        size if wait else None,
        True,
        timeout=timedelta(seconds=seconds()),
        wait_for_workers=wait,
        master_listen_fd=listener.detach(),
    )


def _address(started: Started) -> str:
    if started.on_one_machine:
        return LOOPBACK
    if started.address:
        return started.address
    if started.launcher is SRUN and "SLURM_STEP_NODELIST" in os.environ:
        return first_host(os.environ["SLURM_STEP_NODELIST"])
    raise LaunchError(_unknown(started, "MASTER_ADDR"))


def _port(started: Started) -> int:
    if started.port is not None:
        return started.port
    if started.launcher is SRUN and "SLURM_JOB_ID" in os.environ:
        # The same for all ranks of a step, and rarely that of another one on the same machine.
        job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ.get("SLURM_STEP_ID", "0"))
        return 20_000 + (job * 101 + step) % 12_000
    raise LaunchError(_unknown(started, "MASTER_PORT"))


def _unknown(started: Started, variable: str) -> str:
    return (
        f"{started.launcher.name} says that this is rank {started.rank} of {started.size}, and not "
        f"where the others are: install mpi4py (pip install 'mpi4dl[mpi]'), or set {variable}"
    )


def use_loopback() -> None:
    """Gloo's own connections stay on this machine, too, unless somebody chose otherwise."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
