"""The names under which torch.distributed finds the backend."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..communicator import SERIAL, Communicator

NAMES = ("mpi4py", "mpi")
"""What `torch.distributed.get_backend` may call it; the second only where PyTorch has no MPI."""


class _NotBuiltIn(str):
    """The name `mpi`, of a backend that PyTorch does not have itself.

    PyTorch compares a group's backend with `Backend.MPI` to see whether to make its own, which it
    then lacks, before it looks among the registered ones. A group's backend *is* that attribute;
    so it equals every other "mpi", and not itself.
    """

    def __eq__(self, other: object) -> bool:
        return other is not self and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def register() -> None:
    """Make the backend known to PyTorch. Once is enough, and importing mpi4dl does it."""
    if not dist.is_available():
        return
    for name in NAMES:
        if name == "mpi" and dist.is_mpi_available():
            continue
        if name.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(name, _new_group, True, ["cpu", "cuda"])
            if name == "mpi":
                dist.Backend.MPI = _NotBuiltIn(name)


def serves(group: dist.ProcessGroup) -> bool:
    """Whether a group is of this backend, and not of PyTorch's own MPI."""
    from .process_group import MpiProcessGroup

    return isinstance(group, MpiProcessGroup)


def connect(group: Any) -> Communicator:
    """For tiles on the ranks of a group that this backend `serves`. All of them call it."""
    from .communicator import MpiCommunicator

    return MpiCommunicator(group.ranks, group.timeout) if group.size() > 1 else SERIAL


def _new_group(options: Any, _: Any) -> dist.ProcessGroup:
    from .process_group import MpiProcessGroup  # with it comes mpi4py

    return MpiProcessGroup.of(options)
