"""`mpi4dl doctor`: what is here, whether two ranks can train with it, and what would help."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ..comm.launch import backends
from ..comm.shared_memory import supported
from .versions import installed

_PACKAGES = {
    "numpy": "needed",
    "mpi4py": "ranks of mpirun find each other by themselves",
    "tqdm": "a progress bar",
    "pillow": "PNG and JPEG, such as --app 1",
    "tifffile": "TIFF",
    "openslide-python": "slides",
    "rasterio": "GeoTIFF",
    "zarr": "Zarr",
    "shtab": "completion in a shell",
    "matplotlib": "pictures of timelines",
}
_LAUNCHERS = ("torchrun", "mpirun", "mpiexec", "srun")
EXACT = 1e-11


def doctor(own_version: str) -> int:
    """The exit code is 0 if two ranks compute what one process does."""
    findings, error = self_test()
    sections = {
        "software": list(_software(own_version)),
        "machine": list(_machine()),
        "ways to start ranks": list(_launchers()),
        "self-test: two ranks on this machine": [error] if error else list(_measured(findings)),
        "advice": list(advice(findings, error)) or ["nothing: all is well"],
    }
    for title, lines in sections.items():
        print("\n".join([title, *(f"  {line}" for line in lines), ""]))
    return 1 if error or findings["gradient error"] > EXACT else 0


def _software(own_version: str) -> Iterator[str]:
    yield f"mpi4dl      {own_version}"
    yield f"python      {platform.python_version()}"
    yield f"torch       {torch.__version__}"
    for package, use in _PACKAGES.items():
        found = installed(package)
        yield f"{package:<11} {found or f'not installed ({use})'}"
    yield f"backends    {', '.join(backends()) if dist.is_available() else 'none'}"
    yield f"MPI         {_mpi_library()}"


def _mpi_library() -> str:
    """Asked in a process of its own: an MPI that does not fit its launcher ends the process."""
    if not importlib.util.find_spec("mpi4py"):
        return "mpi4py is not installed"
    question = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    done = _asked([sys.executable, "-c", question])
    if done is None or done.returncode or not done.stdout.strip():
        return "mpi4py is installed, and finds no MPI library"
    return done.stdout.replace("\0", "").splitlines()[0].strip()


def _machine() -> Iterator[str]:
    yield f"cores       {len(os.sched_getaffinity(0))} for this process, of {os.cpu_count()}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"memory      {memory:.1f} GiB"
    yield f"messages    {'shared memory' if supported() else 'Gloo'} between ranks of this machine"
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        yield f"GPU {number}       {gpu.name}, {gpu.total_memory / 2**30:.1f} GiB"
    if not torch.cuda.is_available():
        yield f"GPUs        none{'' if torch.version.cuda else ' (this PyTorch is for CPUs)'}"


def _launchers() -> Iterator[str]:
    yield "none        scripts and mpi4dl bench start their own ranks on this machine"
    for name in _LAUNCHERS:
        found = _found(name)
        yield f"{name:<11} {found + _first_line(name, found) if found else 'not found'}"


def _found(command: str) -> str | None:
    """Also where this Python has its commands, if its environment is not the current one."""
    return shutil.which(command) or shutil.which(command, path=os.path.dirname(sys.executable))


def _first_line(launcher: str, path: str) -> str:
    """What it says it is: there are several mpiruns."""
    if launcher == "torchrun":
        return ""
    done = _asked([path, "--version"])
    lines = done.stdout.splitlines() if done and done.returncode == 0 else []
    return next((f" ({' '.join(line.split())})" for line in lines if re.search(r"\d", line)), "")


def self_test() -> tuple[dict[str, float], str]:
    """What two ranks found, and what went wrong."""
    code = (
        "import sys; from mpi4dl.comm.local_ranks import run_local_ranks; "
        "sys.exit(run_local_ranks(2, [sys.executable, '-m', 'mpi4dl.train.selftest'], 0))"
    )
    done = _asked([sys.executable, "-c", code], _without_launcher(os.environ), 120)
    if done is None:
        return {}, "the two ranks did not finish within two minutes"
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        return {}, f"failed with exit code {done.returncode}: {last.strip()}"
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found, ""


def _without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Also within a job, the two ranks are this machine's own."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    prefixes = ("OMPI_", "PMI_", "MV2_", "SLURM_", "TORCHELASTIC_", "MPI4DL_RANKS")
    return {
        name: value
        for name, value in environ.items()
        if name not in names and not name.startswith(prefixes)
    }


def _measured(findings: Mapping[str, float]) -> Iterator[str]:
    error = findings["gradient error"]
    verdict = "as in one process" if error <= EXACT else "NOT those of one process"
    yield f"gradients on tiles  {verdict} (relative error {error:.1e}, float64)"
    for name, seconds in findings.items():
        if name != "gradient error":
            yield f"{name:<22} {seconds * 1e6:9,.1f} µs"


def advice(findings: Mapping[str, float], error: str) -> Iterator[str]:
    if error:
        yield "two ranks could not train: try MPI4DL_SHARED_MEMORY=0, and see what they said above"
    if findings and findings["gradient error"] > EXACT:
        yield "gradients are wrong here: do not train; please report this with the output above"
    if findings and findings["exchange of 8 bytes"] > 1e-3:
        yield "small messages are slow: are more processes busy here than there are cores?"
    if any(map(_found, ("mpirun", "mpiexec"))) and not installed("mpi4py"):
        yield "there is an mpirun: with mpi4py its ranks need no MASTER_ADDR and MASTER_PORT"
    if torch.cuda.device_count() == 0 and shutil.which("nvidia-smi"):
        yield "there is nvidia-smi, and PyTorch sees no GPU: is this PyTorch one for CPUs?"
    if "OMP_NUM_THREADS" not in os.environ and shutil.which("srun"):
        yield "under srun, --cpus-per-task decides how many threads a rank may use"


def _asked(
    command: list[str], environment: dict[str, str] | None = None, timeout: float = 30
) -> Any:
    """The finished process; None if it cannot be started, or does not end."""
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
