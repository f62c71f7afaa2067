"""Tensors as memory that MPI reads and writes.

A contiguous tensor of the host is handed over as it is. Others pass through a contiguous copy; a
GPU's, unless MPI reads GPUs, through pinned memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .library import datatypes, mpi, reads_gpus

Finish = Callable[[], None]


def memory(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor, which must outlive what is returned."""
    return mpi().buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def typed(tensor: Tensor) -> list[Any]:
    """The same, as numbers to compute with."""
    return [memory(tensor), tensor.numel(), datatypes()[tensor.dtype]]


def outgoing(tensor: Tensor) -> Tensor:
    """What MPI reads in its place."""
    if tensor.is_cpu:
        return tensor.detach().contiguous()
    if reads_gpus():
        return settled(tensor.detach().contiguous())
    return _pinned(tensor).copy_(tensor.detach())


def incoming(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """What MPI writes in its place, and what then brings it there."""
    settled(tensor)  # what was begun with the old contents must be done with them
    if tensor.is_contiguous() and (tensor.is_cpu or reads_gpus()):
        return tensor, None
    if tensor.is_cpu or reads_gpus():
        arriving = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    else:
        arriving = _pinned(tensor)
    return arriving, lambda: store(arriving, tensor)


def store(arrived: Tensor, tensor: Tensor) -> None:
    """Copy, and be done when this returns, whichever thread calls."""
    settled(tensor.detach().copy_(arrived))


def settled(tensor: Tensor) -> Tensor:
    """The tensor, when a GPU has done with it what it was told."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Their values one after the other; without a copy if they lie so already."""
    whole = _in_one_piece(tensors)
    if whole is not None:
        return outgoing(whole)
    return outgoing(torch.cat([t.detach().reshape(-1) for t in tensors]))


def apart(tensors: Sequence[Tensor]) -> tuple[Tensor, Finish | None]:
    """Memory for values one after the other, and what then brings them to these tensors."""
    whole = _in_one_piece(tensors)
    if whole is not None:
        return incoming(whole)
    sizes = [t.numel() for t in tensors]
    flat = tensors[0].detach().new_empty(sum(sizes))
    arriving, bring = incoming(flat)

    def finish() -> None:
        if bring is not None:
            bring()
        for part, tensor in zip(flat.split(sizes), tensors, strict=True):
            store(part.view(tensor.shape), tensor)

    return arriving, finish


def _in_one_piece(tensors: Sequence[Tensor]) -> Tensor | None:
    """A view of all of them, if they are neighbours in one storage, in this order."""
    first = tensors[0].detach()
    storage, address = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.dtype != first.dtype:
            return None
        if tensor.data_ptr() != address or tensor.untyped_storage().data_ptr() != storage:
            return None
        address += tensor.nbytes
    return first.as_strided((sum(t.numel() for t in tensors),), (1,))


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def overlap(a: Tensor, b: Tensor) -> bool:
    return bool(a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes)
