"""`Checkpoints`: a folder of them."""

from __future__ import annotations

import json
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from ...comm.objects import shared
from ...errors import CheckpointError
from ...pipeline import Trainer
from .folder import begin, chosen, complete, unfinished
from .index import Index
from .saving import Saving
from .storage import SafetensorsReader, empty, read_alone, read_index

T = TypeVar("T")
_PROGRESS = "progress"


@dataclass(frozen=True)
class _Pending:
    saving: Saving
    beginning: Path
    trainer: Trainer


class Checkpoints:
    """A folder of checkpoints, of which the last `keep` stay.

        checkpoints = Checkpoints("run/checkpoints")
        progress = checkpoints.load(trainer) or {"epoch": 0}
        ...
        checkpoints.save(trainer, {"epoch": epoch})
        checkpoints.wait()

    All ranks make the same calls, and see the same folder. `save` copies what this rank is to
    write, and returns; unless `asynchronous` is False, it is written while training goes on.
    `on_error="warn"`: what could not be saved (a full disk) is a warning, and training goes on.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 3,
        asynchronous: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep is {keep}: at least 1 checkpoint has to stay")
        if on_error not in ("raise", "warn"):
            raise CheckpointError(f"on_error is {on_error!r}; it must be 'raise' or 'warn'")
        self.folder = Path(folder)
        self._keep, self._asynchronous, self._on_error = keep, asynchronous, on_error
        self._pending: _Pending | None = None

    def save(self, trainer: Trainer, progress: Mapping[str, Any] | None = None) -> None:
        """All of the training, as it is now. `progress`: what JSON can express. Collective.

        Waits for the save before, and raises what went wrong with it.
        """
        noted = dict(progress or {})
        try:
            json.dumps(noted)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"progress must be what JSON can express: {error}") from error
        with trainer.together("saving a checkpoint"):
            self._save(trainer, noted)

    def _save(self, trainer: Trainer, progress: dict[str, Any]) -> None:
        self._wait()
        world, step = trainer.communicator, trainer.steps
        token = _everyones(secrets.token_hex(4), trainer)[0]
        beginning = unfinished(self.folder, step, token)
        state = _alike(trainer, lambda: _staged(trainer, progress))
        try:
            _alike(trainer, lambda: begin(beginning) if world.rank == 0 else None)
        except CheckpointError as error:
            self._failed(str(error))
            return
        _alike(trainer, lambda: _check_shared(beginning))
        saving = Saving(beginning, step, world.rank, world.size, state, self._keep)
        self._pending = _Pending(saving, beginning, trainer)
        if not self._asynchronous:
            self._wait()

    def wait(self) -> None:
        """Until what was saved is on the disk for good. Collective."""
        if self._pending is not None:
            with self._pending.trainer.together("completing a checkpoint"):
                self._wait()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        trainer = pending.trainer
        problems = _everyones(pending.saving.written(), trainer)
        if any(problems):
            pending.saving.give_up()
        else:
            problems = _everyones(pending.saving.completed(), trainer)
        for rank, problem in enumerate(problems):
            if problem:
                pending.saving.completed()
                if trainer.communicator.rank == 0:
                    shutil.rmtree(pending.beginning, ignore_errors=True)
                self._failed(f"rank {rank} could not write to {pending.beginning}: {problem}")
                return

    def load(self, trainer: Trainer, step: int | None = None) -> dict[str, Any] | None:
        """The last one, or that of a step, into the trainer. Its progress; None if there is none.

        Collective. If it belongs to another model nothing is changed.
        """
        with trainer.together("loading a checkpoint"):
            return self._load(trainer, step)

    def _load(self, trainer: Trainer, step: int | None) -> dict[str, Any] | None:
        self._wait()
        world = trainer.communicator
        found = _alike(trainer, lambda: chosen(self.folder, step) if world.rank == 0 else None)
        checkpoint = _everyones(found, trainer)[0]
        if checkpoint is None:
            return None
        index = _alike(trainer, lambda: read_index(checkpoint))
        shapes = {name: entry.shape for name, entry in index.tensors.items()}
        keys = _alike(trainer, lambda: trainer.wanted_state(shapes, index.values))
        state = _alike(trainer, lambda: _read(checkpoint, index, keys))
        trainer.load_full_state(state)
        progress: dict[str, Any] = index.values[_PROGRESS]
        return progress

    def steps(self) -> list[int]:
        """Of what there is, in order: `Trainer.steps` at the time."""
        return list(complete(self.folder))

    def _failed(self, problem: str) -> None:
        last = self.steps()[-1:]
        left = f"the last good one is that of step {last[0]}" if last else "there is none yet"
        message = f"a checkpoint was not saved; {left}. {problem}"
        if self._on_error == "raise":
            raise CheckpointError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _staged(trainer: Trainer, progress: dict[str, Any]) -> dict[str, Any]:
    """This rank's share, copied to the host's memory: what is trained on does not touch it."""
    state = {key: _copied(value) for key, value in trainer.full_state().items()}
    return {**state, _PROGRESS: progress} if trainer.communicator.rank == 0 else state


def _check_shared(beginning: Path) -> None:
    if not beginning.is_dir():
        raise CheckpointError(
            f"not every rank sees {beginning}, which rank 0 has made: checkpoints need a folder "
            "that all machines share"
        )


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _read(checkpoint: Path, index: Index, keys: list[str]) -> dict[str, Any]:
    state = {key: empty(index.tensors[key]) if key in index.tensors else None for key in keys}
    read_alone(state, SafetensorsReader(checkpoint))
    return state


def _everyones(value: T, trainer: Trainer) -> list[T]:
    """In the order of the ranks. Collective."""
    return shared(value, trainer.communicator, trainer.device)


def _alike(trainer: Trainer, work: Callable[[], T]) -> T:
    """What fails on one rank fails on all, with one message. Collective."""
    result, problem = None, ""
    try:
        result = work()
    except CheckpointError as error:
        problem = str(error)
    problems = _everyones(problem, trainer)
    for rank, told in enumerate(problems):
        if told:
            raise CheckpointError(told if len(set(problems)) == 1 else f"rank {rank}: {told}")
    return result  # type: ignore[return-value]
