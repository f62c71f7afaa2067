"""The weights of a run, for prediction: those of its best or its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from ...errors import UsageError
from ..checkpoints.folder import chosen
from ..checkpoints.storage import SafetensorsReader, empty, read_alone, read_index
from .keeping import AVERAGE, BEST, LAST


def checkpoint_of(run: Path) -> Path:
    """The best one, if the run has kept it; else the last."""
    for name in (BEST, LAST):
        found = chosen(run / name, None)
        if found is not None:
            return found
    raise UsageError(
        f"{run} has no checkpoint: give the weights as a file, with --weights, or train with "
        "checkpoints"
    )


class TrainedWeights(Mapping[str, Tensor]):
    """By their names in the model, each read when it is asked for; averaged ones, if there are."""

    def __init__(self, checkpoint: Path) -> None:
        self._index, self._reader = read_index(checkpoint), SafetensorsReader(checkpoint)
        keys: dict[str, str] = {}
        for part in ("model", AVERAGE):
            prefix = f"{part}."
            keys |= {
                key.removeprefix(prefix): key
                for key in self._index.tensors
                if key.startswith(prefix)
            }
        self._keys = keys
        self.shapes = {name: tuple(self._index.tensors[key].shape) for name, key in keys.items()}

    def __getitem__(self, name: str) -> Tensor:
        key = self._keys[name]
        state = {key: empty(self._index.tensors[key])}
        read_alone(state, self._reader)
        return state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
