"""A batch that all ranks can read, or an error that all of them raise.

What this rank will ask for is read before the batch is handed out, and the ranks tell each other
what failed. Nobody computes before that, so nobody waits for a rank that has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import PurePath
from typing import Any

import torch

from ..comm.communicator import Communicator
from ..comm.objects import shared
from ..errors import DamagedFile, DataError
from ..geometry import Layout
from .ahead import Ahead, When
from .dataset import Dataset
from .selection import Request, Selection


@dataclass(frozen=True)
class Failure:
    message: str
    damaged: bool
    """Whether the file is to blame, and not the machine or what was asked for."""


def check_same(dataset: Dataset, comm: Communicator, device: Any) -> None:
    """Tiles of one image must be of one image: every rank has the same samples. Collective."""
    digest = sha256()
    if dataset.labels is not None:
        digest.update(dataset.labels.numpy().tobytes())
    if not dataset.lasting:  # whose names are those of files; folders may be mounted elsewhere
        names = [PurePath(dataset.name(index)).name for index in range(len(dataset))]
        digest.update("\0".join(names).encode())
    mine = torch.tensor([len(dataset), int.from_bytes(digest.digest()[:7], "big")], device=device)
    everyone = comm.all_gather(mine)
    for rank, theirs in enumerate(everyone):
        if not torch.equal(theirs, everyone[0]):
            counts = ", ".join(str(int(count)) for count, _ in everyone)
            raise DataError(
                f"rank {rank} has other samples than rank 0 (numbers of samples: {counts}): every "
                "rank must find the same files"
            )


def failures(
    ahead: Ahead, when: When, selection: Selection, requests: Iterable[Request], keep: bool
) -> dict[int, Failure]:
    """The places of the batch that this rank cannot read."""
    parts = [part for request in requests for part in request.parts()]
    ahead.begin(when, selection, parts)
    found: dict[int, Failure] = {}
    for part in parts:
        try:
            if keep:
                ahead.look(when, selection, part)
            else:
                ahead.take(when, selection, [part])
        except DataError as error:
            damaged = isinstance(error, DamagedFile)
            found.setdefault(part.place, Failure(str(error), damaged))
        except Exception as error:
            name = selection.dataset.name(selection.indices[part.place])
            found.setdefault(part.place, Failure(f"{name} was not read: {error!r}", False))
    return found


def agreed(mine: dict[int, Failure], comm: Communicator, device: Any) -> dict[int, Failure]:
    """What any rank cannot read, in the words of the first that cannot. Collective."""
    count = comm.all_gather(torch.tensor([len(mine)], device=device))
    if not count.any():
        return {}
    found: dict[int, Failure] = {}
    for one in reversed(shared(mine, comm, device)):
        found |= one
    return dict(sorted(found.items()))


def share(selection: Selection, places: Iterable[int], comm: Communicator) -> list[Request]:
    """Rows of every image for each rank: together, all of it."""
    data = selection.dataset
    box = Layout.horizontal(data.size, comm.size).boxes[comm.rank]
    kinds = [False] if data.labels is not None else [False, True]
    return [Request(range(p, p + 1), masks, box) for p in places for masks in kinds]


def only(requests: Iterable[Request], places: Iterable[int]) -> list[Request]:
    """What was asked of these places."""
    wanted = set(places)
    return [
        replace(request, places=range(p, p + 1))
        for request in requests
        for p in request.places
        if p in wanted
    ]
