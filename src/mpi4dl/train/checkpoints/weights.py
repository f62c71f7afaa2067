"""Weights alone, to and from one safetensors file with the names of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ...errors import CheckpointError
from .folder import chosen
from .storage import INDEX, SafetensorsReader, empty, read_alone, read_index, synchronized


def export_weights(checkpoint: str | Path, file: str | Path, part: str = "model") -> int:
    """The model's `state_dict` out of a checkpoint (one, or the last in a folder of them).

    `model.load_state_dict(safetensors.torch.load_file(file))` loads it anywhere. `part`: another
    label instead, such as that of averaged weights. Returns how many tensors there are.
    """
    folder = Path(checkpoint)
    found = folder if (folder / INDEX).is_file() else chosen(folder, None)
    if found is None:
        raise CheckpointError(f"{folder} has no checkpoint")
    index = read_index(found)
    keys = [key for key in index.tensors if key.startswith(f"{part}.")]
    if not keys:
        there = sorted({key.partition(".")[0] for key in index.tensors})
        raise CheckpointError(f"{found} has no {part}: it has {', '.join(there)}")
    state = {key: empty(index.tensors[key]) for key in keys}
    read_alone(state, SafetensorsReader(found))
    target = Path(file)
    beside = target.with_name(f".{target.name}.new")
    try:
        save_file({key.removeprefix(f"{part}."): t for key, t in state.items()}, beside)
        synchronized(beside)
        beside.replace(target)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise CheckpointError(f"{target} cannot be written: {error}") from error
    return len(keys)


def read_weights(file: str | Path) -> Mapping[str, Tensor]:
    """For `Trainer.load_state_dict(read_weights(file), strict=False)`: read by name, when asked."""
    if Path(file).suffix != ".safetensors":
        raise CheckpointError(
            f"{file} is no safetensors file, and other formats may run code when they are read. "
            "Convert one that you trust: safetensors.torch.save_file(torch.load(file, "
            'weights_only=True), "weights.safetensors")'
        )
    return _Weights(Path(file))


class _Weights(Mapping[str, Tensor]):
    """Each rank reads the tensors of its own stages."""

    def __init__(self, file: Path) -> None:
        try:
            self._opened = safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        names = self._opened.keys()
        self.shapes = {name: tuple(self._opened.get_slice(name).get_shape()) for name in names}
        """Known before anything is read."""

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        tensor: Tensor = self._opened.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
