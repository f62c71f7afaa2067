"""What this machine has to have before ranks start on it."""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist

from ..comm.launch import check_backend
from ..comm.launchers import Started
from ..errors import LaunchError, UsageError

_MPI = ("mpi", "mpi4py")


def backend_of(options: Namespace) -> str | None:
    """What was asked for. `mpi` is mpi4py, unless this PyTorch has an MPI of its own."""
    asked: str | None = options.backend or os.environ.get("MPI4DL_BACKEND")
    if asked is None and options.device == "cpu" and torch.cuda.is_available():
        return "gloo"
    return "mpi4py" if asked == "mpi" and not dist.is_mpi_available() else asked


def check_surroundings(options: Namespace, started: Started | None, ranks: int) -> None:
    """`ranks`: of all machines; without a launcher they are all started here."""
    backend = backend_of(options)
    check_backend(backend)
    if backend in _MPI and started is None and ranks > 1:
        raise LaunchError(
            f"{backend} is for ranks that mpirun starts: use mpirun -np {ranks}, or --backend gloo"
        )
    _check_device(options.device)
    _check_gpus(options, backend, started, ranks)
    check_output("--json", options.json)
    if started is None or started.rank == 0:
        _check_port(os.environ.get("MASTER_PORT"), started)


def share_threads(started: Started | None) -> None:
    """The cores of a machine are for all ranks on it, unless the launcher said so already."""
    if started is not None and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, cores // (started.local_size or started.size)))


def _check_device(device: str | None) -> None:
    if device is None:
        return
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UsageError(f"--device is {device!r}: use cpu, cuda or cuda:1") from None
    if wanted.type not in ("cpu", "cuda"):
        raise UsageError(f"--device is {device!r}: use cpu, cuda or cuda:1")
    count = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= count:
        has = f"{count} {'GPU' if count == 1 else 'GPUs'}" if count else "no GPU"
        raise LaunchError(f"--device is {device}, and this machine shows {has}: use --device cpu")


def _check_gpus(
    options: Namespace, backend: str | None, started: Started | None, ranks: int
) -> None:
    count = torch.cuda.device_count()
    if backend == "nccl" and count == 0:
        raise LaunchError("nccl is for GPUs, and this machine shows none: use --backend gloo")
    cpu = options.device is not None and torch.device(options.device).type == "cpu"
    if backend == "nccl" and cpu:
        raise UsageError("nccl is for GPUs, and --device is cpu: use --backend gloo")
    if count == 0 or cpu or backend not in (None, "nccl"):
        return
    here = ranks if started is None else started.local_size
    if here is not None and here > count and ranks > 1:
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
        raise LaunchError(
            f"{here} ranks are on this machine, which shows {gpus}: start them on more machines, "
            "or use --backend gloo --device cuda to share GPUs, or --device cpu"
        )


def check_output(flag: str, file: str | None) -> None:
    """A file that is to be written at the end."""
    if file is None:
        return
    folder = Path(file).absolute().parent
    if Path(file).is_dir():
        raise UsageError(f"{flag} {file} is a folder: name a file")
    if not folder.is_dir():
        raise UsageError(f"{flag} {file}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{flag} {file}: {folder} cannot be written to")


def _check_port(text: str | None, started: Started | None) -> None:
    """Of a launcher that leaves it to rank 0 to listen there. (torchrun listens itself.)"""
    if text is None or started is None or started.launcher.name == "torchrun":
        return
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise LaunchError(f"MASTER_PORT is {text!r}; it must be a number from 1 to 65535")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(text)))
        except OSError as error:
            raise LaunchError(
                f"port {text} is in use on this machine ({error.strerror}): set MASTER_PORT to "
                "another"
            ) from error
