"""Ranks compare notes before they depend on each other: an error on one is an error on all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..comm.communicator import Communicator
from ..errors import LayoutMismatch, Mpi4dlError
from .placement import Placement

T = TypeVar("T")

_TEXT = 240
_KINDS = (RuntimeError, ValueError)


def check_same_on_all_ranks(
    what: str,
    x: Tensor,
    shape: tuple[int, ...],
    placement: Placement | None,
    problem: str,
    comm: Communicator,
) -> None:
    """Raise on every rank if a rank has a `problem`, or if the ranks' tensors are not alike.

    One all-gather of a short text: the shape that must agree, the dtype, whether a gradient is
    wanted (ranks without one would not take part in backward, and the others would wait), and
    the number that stands for the layout.
    """
    mine = problem or f"shape {shape}, {x.dtype}, requires_grad={x.requires_grad}"
    if placement is not None and not problem:
        size, key = placement.layout.size, hash(placement) & 0xFFFFFFFF
        mine += f", layout of {size} in dimensions {placement.dims} [{key:08x}]"
    if comm.size == 1:
        if problem:
            raise LayoutMismatch(f"{what}: {problem}")
        return
    # The digest tells two long texts apart whose shown beginnings are the same.
    digest = hashlib.sha256(mine.encode()).digest()[:8]
    note = bytes([bool(problem)]) + digest + mine.encode()[:_TEXT].ljust(_TEXT)
    notes = comm.all_gather(torch.tensor(list(note), dtype=torch.uint8, device=x.device)).cpu()
    texts = [bytes(row.tolist()) for row in notes]
    shown = [text[9:].decode(errors="replace").strip() for text in texts]
    failed = [rank for rank, text in enumerate(texts) if text[0]]
    if failed:
        raise LayoutMismatch(
            f"{what}: "
            + "; ".join(f"rank {r}: {shown[r]}" for r in failed[:4])
            + (f"; and {len(failed) - 4} more ranks" if len(failed) > 4 else "")
        )
    if len(set(texts)) > 1:
        other = next(r for r, text in enumerate(texts) if text != texts[0])
        raise LayoutMismatch(
            f"{what}: the ranks do not agree: rank 0 has {shown[0]}; rank {other} has "
            f"{shown[other]}. Every rank must call it with tensors of the same kind"
        )


def raised_together(compute: Callable[[], T], device: torch.device, comm: Communicator) -> T:
    """What `compute` returns. PyTorch's error on one rank, whose pixels it refuses, is one on all.

    For functions that look at values, and do not communicate. One number is reduced.
    """
    if comm.size == 1 or device.type == "meta":
        return compute()
    problem: Exception | None = None
    try:
        result = compute()
    except Mpi4dlError:  # decided from what all ranks know
        raise
    except _KINDS as error:
        problem = error
    failed = torch.tensor(float(problem is not None), device=device)
    comm.all_reduce(failed, "max")
    if failed == 0:
        return result
    note = bytes(_TEXT + 1)
    if problem is not None:
        kind = 1 + isinstance(problem, ValueError)
        note = bytes([kind]) + str(problem).encode()[:_TEXT].ljust(_TEXT)
    notes = comm.all_gather(torch.tensor(list(note), dtype=torch.uint8, device=device)).cpu()
    first = next(bytes(row.tolist()) for row in notes if row[0])
    raise _KINDS[first[0] - 1](first[1:].decode(errors="replace").strip()) from problem
