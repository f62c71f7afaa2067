"""mpi4py, imported when it is needed: its import starts MPI."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ...errors import LaunchError


@lru_cache(maxsize=1)
def mpi() -> Any:
    """The module `mpi4py.MPI`."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"the MPI backend needs mpi4py and an MPI library ({error}): pip install "
            "'mpi4dl[mpi]', or mpi4py alone where the machine has an MPI"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise LaunchError(
            "MPI was started without MPI_THREAD_MULTIPLE, and a thread has to advance messages "
            "while another computes: use an MPI that has it, and leave mpi4py.rc as it is"
        )
    return MPI


@lru_cache(maxsize=1)
def datatypes() -> dict[torch.dtype, Any]:
    """Of what MPI can compute with. Everything else travels as bytes."""
    MPI = mpi()
    return {
        torch.float32: MPI.FLOAT,
        torch.float64: MPI.DOUBLE,
        torch.complex64: MPI.C_FLOAT_COMPLEX,
        torch.complex128: MPI.C_DOUBLE_COMPLEX,
        torch.int8: MPI.INT8_T,
        torch.int16: MPI.INT16_T,
        torch.int32: MPI.INT32_T,
        torch.int64: MPI.INT64_T,
        torch.uint8: MPI.UINT8_T,
        torch.uint16: MPI.UINT16_T,
        torch.uint32: MPI.UINT32_T,
        torch.uint64: MPI.UINT64_T,
    }


@lru_cache(maxsize=1)
def reads_gpus() -> bool:
    """Whether this MPI takes addresses of a GPU's memory, as it says itself (MPI 4.1 and later)."""
    kinds = mpi().INFO_ENV.Get("mpi_memory_alloc_kinds") or ""
    return any(kind.split(":")[0] == "cuda" for kind in kinds.split(","))
