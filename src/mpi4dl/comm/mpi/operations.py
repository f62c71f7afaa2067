"""Each collective as MPI requests, and what is left to do after them.

All are begun without waiting, in the order of the calls, which is what makes ranks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor

from ...errors import LayoutMismatch
from .buffers import Finish, apart, incoming, joined, memory, outgoing, overlap, typed
from .library import datatypes, mpi
from .reductions import Reduction


class Step(NamedTuple):
    """What an operation has begun."""

    request: Any
    keep: tuple[Tensor, ...]
    finish: Finish | None = None


def broadcast(comm: Any, tensor: Tensor, root: int) -> Step:
    if comm.rank == root:
        read = outgoing(tensor)
        return Step(comm.Ibcast(memory(read), root), (read,))
    written, finish = incoming(tensor)
    return Step(comm.Ibcast(memory(written), root), (written, tensor), finish)


def all_reduce(comm: Any, tensor: Tensor, how: Reduction) -> Step:
    values = how.operand(tensor)
    request = comm.Iallreduce(mpi().IN_PLACE, typed(values), how.op)
    delivered = values.data_ptr() == tensor.data_ptr() and how.name != "AVG"
    finish = None if delivered else lambda: how.deliver(values, tensor)
    return Step(request, (values, tensor), finish)


def reduce(comm: Any, tensor: Tensor, root: int, how: Reduction) -> Step:
    values = how.operand(tensor, copied=comm.rank != root)
    if comm.rank != root:
        return Step(comm.Ireduce(typed(values), None, how.op, root), (values,))
    request = comm.Ireduce(mpi().IN_PLACE, typed(values), how.op, root)
    return Step(request, (values, tensor), lambda: how.deliver(values, tensor))


def all_gather(comm: Any, outputs: Sequence[Tensor], tensor: Tensor) -> Step:
    """Into one tensor for each rank; their sizes may differ, if all ranks know them."""
    _one_each(comm, outputs, "all_gather")
    read = _apart_from(outgoing(tensor), outputs)
    written, finish = apart(outputs)
    if len({output.nbytes for output in outputs}) == 1:
        request = comm.Iallgather(memory(read), memory(written))
    else:
        request = comm.Iallgatherv(memory(read), _pieces(written, outputs))
    return Step(request, (read, written, *outputs), finish)


def all_gather_single(comm: Any, output: Tensor, tensor: Tensor) -> Step:
    _multiple(comm, output, tensor, "all_gather_into_tensor")
    read = outgoing(tensor)
    written, finish = incoming(output)
    if read.data_ptr() == written.data_ptr() + comm.rank * read.nbytes:
        request = comm.Iallgather(mpi().IN_PLACE, memory(written))
    else:
        read = _apart_from(read, [written])
        request = comm.Iallgather(memory(read), memory(written))
    return Step(request, (read, written, output), finish)


def gather(comm: Any, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> Step:
    read = outgoing(tensor)
    if comm.rank != root:
        return Step(comm.Igatherv(memory(read), None, root), (read,))
    _one_each(comm, outputs, "gather")
    read = _apart_from(read, outputs)
    written, finish = apart(outputs)
    request = comm.Igatherv(memory(read), _pieces(written, outputs), root)
    return Step(request, (read, written, *outputs), finish)


def scatter(comm: Any, output: Tensor, inputs: Sequence[Tensor], root: int) -> Step:
    written, finish = incoming(output)
    if comm.rank != root:
        request = comm.Iscatterv(None, memory(written), root)
        return Step(request, (written, output), finish)
    _one_each(comm, inputs, "scatter")
    read = _apart_from(joined(inputs), [output])
    request = comm.Iscatterv(_pieces(read, inputs), memory(written), root)
    return Step(request, (read, written, output), finish)


def reduce_scatter(comm: Any, output: Tensor, inputs: Sequence[Tensor], how: Reduction) -> Step:
    _one_each(comm, inputs, "reduce_scatter")
    read = _apart_from(how.operand(joined(inputs)), [output])
    written, finish = how.target(output)
    counts = [tensor.numel() for tensor in inputs]
    request = comm.Ireduce_scatter(typed(read), typed(written), counts, how.op)
    return Step(request, (read, written, output), finish)


def reduce_scatter_single(comm: Any, output: Tensor, tensor: Tensor, how: Reduction) -> Step:
    _multiple(comm, tensor, output, "reduce_scatter_tensor")
    read = _apart_from(how.operand(tensor), [output])
    written, finish = how.target(output)
    # Without counts: mpi4py takes those it is given for what one rank has of both.
    read_as, written_as = ([memory(t), datatypes()[t.dtype]] for t in (read, written))
    request = comm.Ireduce_scatter_block(read_as, written_as, how.op)
    return Step(request, (read, written, output), finish)


def all_to_all(comm: Any, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Step:
    _one_each(comm, outputs, "all_to_all")
    _one_each(comm, inputs, "all_to_all")
    read = _apart_from(joined(inputs), outputs)
    written, finish = apart(outputs)
    request = comm.Ialltoallv(_pieces(read, inputs), _pieces(written, outputs))
    return Step(request, (read, written, *outputs), finish)


def all_to_all_single(
    comm: Any, output: Tensor, tensor: Tensor, to_receive: Sequence[int], to_send: Sequence[int]
) -> Step:
    """Cut along the first dimension: equally, where no sizes are given."""
    written, finish = incoming(output)
    read = _apart_from(outgoing(tensor), [output])
    sent, received = _cut(comm, read, to_send), _cut(comm, written, to_receive)
    request = comm.Ialltoallv(_pieces(read, sent), _pieces(written, received))
    return Step(request, (read, written, output), finish)


def _cut(comm: Any, tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    rows = tensor.shape[0] if tensor.ndim else 0
    if not sizes and rows % comm.size:
        raise LayoutMismatch(
            f"all_to_all_single cuts {rows} rows into {comm.size} equal parts: give split sizes"
        )
    if sizes and (sum(sizes) != rows or len(sizes) != comm.size):
        raise LayoutMismatch(
            f"all_to_all_single has split sizes {list(sizes)} for {rows} rows and {comm.size} "
            "ranks: there must be one for each rank, and together all rows"
        )
    return tensor.split(list(sizes) or [rows // comm.size] * comm.size)


def _pieces(whole: Tensor, parts: Sequence[Tensor]) -> list[Any]:
    counts = [part.numel() * part.element_size() for part in parts]
    starts = [0, *accumulate(counts)][:-1]
    return [memory(whole), counts, starts, mpi().BYTE]


def _apart_from(read: Tensor, written: Sequence[Tensor]) -> Tensor:
    """A copy, where MPI would read and write the same memory, which it forbids."""
    return read.clone() if any(overlap(read, other) for other in written) else read


def _one_each(comm: Any, tensors: Sequence[Tensor], name: str) -> None:
    if len(tensors) != comm.size:
        raise LayoutMismatch(
            f"{name} has {len(tensors)} tensors for {comm.size} ranks: give one for each"
        )


def _multiple(comm: Any, large: Tensor, small: Tensor, name: str) -> None:
    if large.numel() != small.numel() * comm.size or large.dtype != small.dtype:
        raise LayoutMismatch(
            f"{name} over {comm.size} ranks has {tuple(small.shape)} {small.dtype} for one and "
            f"{tuple(large.shape)} {large.dtype} for all: that must be {comm.size} times as much"
        )


def join(steps: Sequence[Step]) -> tuple[list[Any], list[Finish], list[Tensor]]:
    """Several that are one operation."""
    requests = [step.request for step in steps]
    finishes = [step.finish for step in steps if step.finish is not None]
    return requests, finishes, [tensor for step in steps for tensor in step.keep]
