"""Weights alone: to and from one safetensors file with the names of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor


def export_weights(checkpoint: str | Path, file: str | Path) -> None:
    """The model's `state_dict` out of a checkpoint (one, or the last in a folder of them).

    `model.load_state_dict(safetensors.torch.load_file(file))` loads it anywhere.
    """
    raise NotImplementedError


def read_weights(file: str | Path) -> Mapping[str, Tensor]:
    """For `Trainer.load_state_dict(read_weights(file), strict=False)`: read by name, when asked."""
    raise NotImplementedError
