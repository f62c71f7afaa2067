"""What a dry run computes, keeps and says: operators, bytes and messages, without any data.

The code that trains runs on the meta device, where tensors have shapes and no memory. Every
operator passes the recorder, which notes what it would cost and how long its results live.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..comm.communicator import Done, Message, Pending, ReduceOp

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """The numbers that decide how fast a convolution is."""

    inputs: Sizes
    """The shape of the input: of a batch, with channels and image."""
    weight: Sizes
    stride: Sizes
    dilation: Sizes
    padding: Sizes
    groups: int
    transposed: bool
    wants: tuple[bool, ...] = ()
    """In backward: the gradients of input, weight and bias."""
    pixels: int = 0
    """Outputs of a channel, of all samples."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of call of a kernel. Equal calls cost the same."""

    name: str
    flops: int
    bytes: int
    """Read and written."""
    convolution: Convolution | None = None


Event = tuple[int, int]
"""(which storage, bytes): more than 0 when it is made, less when it is freed."""

Workspace = Callable[[Operator], Sequence[int]]
"""Bytes that a kernel needs while it makes its results: one number for each."""

Talk = tuple[Literal["exchange", "reduce"], int]
"""What a rank says to others, once, and how many bytes."""


@dataclass
class Record:
    """Of one phase of a dry run."""

    events: list[Event] = field(default_factory=list)
    operators: Counter[Operator] = field(default_factory=Counter)
    talks: Counter[Talk] = field(default_factory=Counter)


def no_workspace(operator: Operator) -> Sequence[int]:
    return ()


class Recorder(TorchDispatchMode):
    """While it is entered, everything goes into `record`, which may be exchanged for another."""

    def __init__(self, workspace: Workspace = no_workspace) -> None:
        super().__init__()
        self.record = Record()
        self._workspace = workspace
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._number = 0

    def storage(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage, if it was made here and still is."""
        found = self._alive.get(tensor.untyped_storage()._cdata)
        return found[0] if found else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        made = [v for v in tree_leaves(out) if isinstance(v, Tensor)]
        operator = _operator(func, args, given, made, out)
        if operator is not None:
            self.record.operators[operator] += 1
        known = {v.untyped_storage()._cdata for v in given}
        scratch = list(self._workspace(operator)) if operator is not None else []
        for tensor in made:
            if tensor.untyped_storage()._cdata not in known:
                with self._borrowed(scratch.pop(0) if scratch else 0):
                    self._note(tensor)
        return out

    def _borrowed(self, size: int) -> Any:
        return _Borrowed(self, size)

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or not size:
            return
        number = self.made(size)

        def freed(_: Any) -> None:
            self._alive.pop(key, None)
            self.record.events.append((number, -size))

        self._alive[key] = (number, weakref.ref(storage, freed))

    def made(self, size: int) -> int:
        self._number += 1
        self.record.events.append((self._number, size))
        return self._number


class _Borrowed:
    """Scratch memory of a kernel, around the making of its result."""

    def __init__(self, recorder: Recorder, size: int) -> None:
        self._recorder, self._size, self._number = recorder, size, 0

    def __enter__(self) -> None:
        if self._size:
            self._number = self._recorder.made(self._size)

    def __exit__(self, *_: Any) -> None:
        if self._size:
            self._recorder.record.events.append((self._number, -self._size))


_FREE = ("empty", "new_empty", "detach", "alias", "_reshape_alias", "lift_fresh", "_unsafe_view")


def _operator(
    func: Any, args: Any, given: list[Tensor], made: list[Tensor], out: Any
) -> Operator | None:
    name = func._schema.name.removeprefix("aten::")
    if name.startswith(_FREE):
        return None
    convolution = None
    if name == "convolution":
        convolution = _convolution(args[0], args[1], args[3:9], (), made[0])
    elif name == "convolution_backward":
        wanted = tuple(map(bool, args[10]))
        convolution = _convolution(args[1], args[2], args[4:10], wanted, args[0])
    moved = sum(v.numel() * v.element_size() for v in (*given, *made))
    count = flop_registry.get(func._overloadpacket)
    flops = count(*args, out_val=out) if count else 0
    return Operator(name, int(flops), moved, convolution)


def _convolution(x: Tensor, weight: Tensor, rest: Any, wants: Any, out: Tensor) -> Convolution:
    stride, padding, dilation, transposed, _, groups = rest
    pixels = out.shape[0] * prod(out.shape[2:])
    shape = tuple(map(int, x.shape)), tuple(map(int, weight.shape))
    numbers = tuple(stride), tuple(dilation), tuple(padding)
    return Convolution(*shape, *numbers, groups, transposed, wants, int(pixels))


class DryCommunicator:
    """A rank of a group that talks to nobody: what it says is noted."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.recorder: Recorder | None = None

    def _said(self, kind: Literal["exchange", "reduce"], size: int) -> None:
        if self.recorder is not None:
            self.recorder.record.talks[kind, size] += 1

    def subgroup(self, ranks: Sequence[int], use: str = "") -> DryCommunicator:
        return dry(ranks.index(self.rank), len(ranks))

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """Of several messages at once the larger direction counts."""
        self._said("exchange", max(_bytes(sends), _bytes(receives)))
        return Done()

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self._said("reduce", tensor.numel() * tensor.element_size())

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        self.all_reduce(tensor)
        return Done()

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._said("reduce", tensor.numel() * tensor.element_size())
        return torch.stack([tensor] * self.size)


def _bytes(messages: Sequence[Message]) -> int:
    return sum(t.numel() * t.element_size() for _, t in messages)


@lru_cache(maxsize=4096)
def dry(rank: int, size: int) -> DryCommunicator:
    """Always the same one, so that what is planned for it is found again."""
    return DryCommunicator(rank, size)
