"""Which launcher started this process, and what it says about it. Read from the environment alone.

| launcher | rank, size | on this machine |
|---|---|---|
| torchrun, `mpi4dl run` | RANK, WORLD_SIZE | LOCAL_RANK, LOCAL_WORLD_SIZE |
| Open MPI's mpirun | OMPI_COMM_WORLD_RANK, …_SIZE | …_LOCAL_RANK, …_LOCAL_SIZE |
| MVAPICH's mpirun_rsh | MV2_COMM_WORLD_RANK, …_SIZE | …_LOCAL_RANK, …_LOCAL_SIZE |
| mpirun of MPICH and Intel MPI | PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS |
| srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE |

The first that is there counts: launchers may run inside of one another. (Within a batch job SLURM
sets its variables also for a script that srun did not start, except those of the step.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import LaunchError


@dataclass(frozen=True)
class Launcher:
    """Names of variables."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    mpi: bool = False


TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SRUN = Launcher(
    "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"
)
LAUNCHERS = (
    TORCHRUN,
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        mpi=True,
    ),
    Launcher(
        "MVAPICH",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        mpi=True,
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", mpi=True),
    SRUN,
)

_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"


@dataclass(frozen=True)
class Started:
    """What a launcher says of this process. What it does not say is None."""

    launcher: Launcher
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    address: str | None
    port: int | None

    @property
    def on_one_machine(self) -> bool:
        return self.local_size == self.size


def started_by(environ: Mapping[str, str]) -> Started | None:
    """None without a launcher. Half of what a launcher sets, or nonsense, is a LaunchError."""
    for launcher in LAUNCHERS:
        needed = [launcher.rank, launcher.size]
        if launcher is TORCHRUN:
            needed += [_ADDRESS, _PORT]
            if launcher.rank not in environ and _another(environ):
                continue  # to which a user may give an address and a port
        elif launcher is SRUN and launcher.size not in environ:
            continue  # in a batch job, and not in a step of it
        present = [name for name in needed if name in environ]
        if not present:
            continue
        missing = [name for name in needed if name not in environ]
        if missing:
            raise LaunchError(
                f"the environment has {', '.join(present)} and lacks {', '.join(missing)}: start "
                "with torchrun, mpirun, srun or mpi4dl run, or set all of them, or none of them "
                "for a single process"
            )
        return _read(launcher, environ)
    return None


def _another(environ: Mapping[str, str]) -> bool:
    return any(other.rank in environ and other.size in environ for other in LAUNCHERS[1:])


def _read(launcher: Launcher, environ: Mapping[str, str]) -> Started:
    rank, size = _number(launcher.rank, environ), _number(launcher.size, environ)
    if not 0 <= rank < size:
        raise LaunchError(
            f"{launcher.name} says {launcher.rank}={rank} and {launcher.size}={size}: ranks count "
            "from 0 to the size less 1"
        )
    local_rank = _number(launcher.local_rank, environ) if launcher.local_rank in environ else None
    return Started(
        launcher,
        rank,
        size,
        local_rank,
        _local_size(launcher, environ),
        environ.get(_ADDRESS),
        _number(_PORT, environ) if _PORT in environ else None,
    )


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name].strip()
    if not text.isdecimal():
        raise LaunchError(f"{name} is {environ[name]!r} in the environment; it must be a number")
    return int(text)


def _local_size(launcher: Launcher, environ: Mapping[str, str]) -> int | None:
    """`4`; or, from SLURM, `4(x2)` for two machines with four each, and `4,2` for uneven ones."""
    text = environ.get(launcher.local_size, "")
    alike = re.fullmatch(r"(\d+)(?:\(x\d+\))?", text.strip())
    return int(alike[1]) if alike else None


def first_host(nodes: str) -> str:
    """The first machine of a SLURM list such as `gpu[03-05,9],login1`."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    if match is None:
        raise LaunchError(f"no machine is named by SLURM_STEP_NODELIST={nodes!r}: set MASTER_ADDR")
    return match[1] + (match[2] or "")
