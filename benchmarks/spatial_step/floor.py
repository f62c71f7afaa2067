"""What a step of tiles says to the other ranks, and a plain model that says as much with 4 bytes.

A `Meter` is a communicator that notes every message of a step: where, in which direction, of which
kind. `with_syncs` then puts a message of 4 bytes at each of these places into a plain model:

    forward    post ─▶ layer ─▶ wait            an exchange, whose wait tiles fill with work
               all ranks ─▶ layer               a statistic
    backward   the same, the other way round
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from mpi4dl.comm.communicator import Communicator, Message, Pending, ReduceOp

Note = tuple[str, str, str]  # (forward, backward or gradients; name of the layer; kind)


class _Labelled:
    """An exchange under way, whose wait shows in a profile."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def wait(self) -> None:
        with record_function("messages: wait"):
            self._pending.wait()


class Meter:
    """A communicator that notes what is said through it, while `watch` watches."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.notes: list[Note] = []
        self.phase, self._layers = "forward", [""]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        if sends or receives:
            self._note("exchange")
        with record_function("messages: post"):
            return _Labelled(self._comm.start(sends, receives))

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        self._note("all_reduce")
        with record_function("messages: of all ranks"):
            self._comm.all_reduce(tensor, op)

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        self._note("all_reduce")
        with record_function("messages: of all ranks"):
            return _Labelled(self._comm.start_all_reduce(tensor))

    def subgroup(self, ranks: Sequence[int], use: str = "") -> Communicator | None:
        return self._comm.subgroup(ranks, use)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._note("all_gather")
        with record_function("messages: of all ranks"):
            return self._comm.all_gather(tensor)

    def _note(self, kind: str) -> None:
        self.notes.append((self.phase, self._layers[-1], kind))

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[list[Note]]:
        """What is noted inside comes with the name of the layer whose forward runs."""
        self.notes, self.phase = [], "forward"
        names = {module: name for name, module in model.named_modules()}

        def enter(module: nn.Module, args: Any) -> None:
            self._layers.append(names[module])

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._layers.pop()

        handles = [m.register_forward_pre_hook(enter) for m in names]
        handles += [m.register_forward_hook(leave) for m in names]
        try:
            yield self.notes
        finally:
            self.notes = []
            for handle in handles:
                handle.remove()


def tally(notes: list[Note]) -> dict[str, int]:
    """How many messages of each direction and kind."""
    kinds = {"exchange": "exchanges"}
    found = Counter(f"{phase} {kinds.get(kind, 'reductions')}" for phase, _, kind in notes)
    return dict(sorted(found.items()))


class Token:
    """A message of 4 bytes, to those whose tiles touch this rank's or to all."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._number = comm, torch.zeros(1)
        near = (comm.rank - 1, comm.rank + 1)
        self._peers = [peer for peer in near if 0 <= peer < comm.size]

    def post(self) -> Pending:
        sends = [(peer, self._number) for peer in self._peers]
        return self._comm.start(sends, [(peer, torch.empty(1)) for peer in self._peers])

    def meet(self, kind: str = "all_reduce") -> None:
        if kind == "all_gather":
            self._comm.all_gather(self._number)
        else:
            self._comm.all_reduce(torch.zeros(1))


class _Before(torch.autograd.Function):
    """Where a layer begins, and its backward ends: what that has posted is waited for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pending: list[Pending]) -> Tensor:
        ctx.pending = pending
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        for pending in ctx.pending:
            pending.wait()
        ctx.pending.clear()
        return grad, None


class _Syncs:
    """The messages of one layer."""

    def __init__(self, kinds: list[str], token: Token) -> None:
        self._exchanges = kinds.count("exchange")
        self._reductions = [kind for kind in kinds if kind != "exchange"]
        self._token = token
        self._under_way: list[Pending] = []
        self._going_back: list[Pending] = []

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for kind in self._reductions:
            self._token.meet(kind)
        self._under_way = [self._token.post() for _ in range(self._exchanges)]
        self._going_back = []
        return (_Before.apply(args[0], self._going_back), *args[1:])

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        for pending in self._under_way:
            pending.wait()
        if not output.requires_grad:
            return
        # An image has no gradient, so nothing of it is sent home.
        exchanges = self._exchanges if args[0].requires_grad else 0
        back = self._going_back

        def post(grad: Tensor) -> None:
            for _ in self._reductions:
                self._token.meet()
            back.extend(self._token.post() for _ in range(exchanges))

        output.register_hook(post)


def with_syncs(model: nn.Module, notes: list[Note], comm: Communicator) -> nn.Module:
    """The model with a message of 4 bytes wherever `notes` of a step of tiles have one."""
    token = Token(comm)
    kinds = defaultdict(list)
    for phase, layer, kind in notes:
        if phase == "forward":
            kinds[layer].append(kind)
    layers = dict(model.named_modules())
    for name, found in kinds.items():
        syncs = _Syncs(found, token)
        layers[name].register_forward_pre_hook(syncs.before)
        layers[name].register_forward_hook(syncs.after)
    return model


def gradient_syncs(notes: list[Note], comm: Communicator) -> int:
    """As many messages of 4 bytes as averaging the gradients took."""
    token, count = Token(comm), sum(phase == "gradients" for phase, _, _ in notes)
    for _ in range(count):
        token.meet()
    return count
