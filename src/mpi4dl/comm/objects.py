"""Small Python objects between ranks of one program: descriptions, notes, timings."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .communicator import Communicator, Pending


def encoded(value: Any, device: torch.device | None = None) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)


def decoded(message: Tensor) -> Any:
    """Only of what another rank of the same program has sent."""
    return pickle.loads(message.cpu().numpy().tobytes())


def send(value: Any, targets: Sequence[int], comm: Communicator, device: Any) -> list[Pending]:
    text = encoded(value, device)
    length = torch.tensor([len(text)], device=device)
    return [comm.start([(target, message) for target in targets], []) for message in (length, text)]


def receive(source: int, comm: Communicator, device: Any) -> Any:
    length = torch.empty(1, dtype=torch.int64, device=device)
    comm.start([], [(source, length)]).wait()
    text = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    comm.start([], [(source, text)]).wait()
    return decoded(text)


def shared(value: Any, comm: Communicator, device: Any = None) -> list[Any]:
    """Everybody's, in rank order. Collective."""
    if comm.size == 1:
        return [value]
    text = encoded(value, device)
    lengths = comm.all_gather(torch.tensor([len(text)], device=device)).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(text)] = text
    rows = comm.all_gather(padded)
    return [decoded(row[:length]) for row, length in zip(rows, lengths, strict=True)]
