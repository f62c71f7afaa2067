"""`Checkpoints`: a folder of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ...pipeline import Trainer


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
        raise NotImplementedError

    def save(self, trainer: Trainer, progress: Mapping[str, Any] | None = None) -> None:
        """All of the training, as it is now. `progress`: what JSON can express. Collective.

        Waits for the save before, and raises what went wrong with it.
        """
        raise NotImplementedError

    def wait(self) -> None:
        """Until what was saved is on the disk for good. Collective."""
        raise NotImplementedError

    def load(self, trainer: Trainer, step: int | None = None) -> dict[str, Any] | None:
        """The last one, or that of a step, into the trainer. Its progress; None if there is none.

        Collective. If it belongs to another model nothing is changed.
        """
        raise NotImplementedError

    def steps(self) -> list[int]:
        """Of what there is, in order: `Trainer.steps` at the time."""
        raise NotImplementedError
