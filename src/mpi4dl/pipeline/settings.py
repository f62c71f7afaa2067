"""What a user decides, brought into one form: numbers are numbers, lists are tuples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

from ..errors import PlanError

T = TypeVar("T", int, str)


class StageKind(Enum):
    """What the ranks of a stage share among them."""

    SPATIAL = "tiles of the image"
    BATCH = "samples of the micro-batch"
    WHOLE = "nothing: one rank has all"


@dataclass(frozen=True)
class Settings:
    """The fields of a `Plan`, and what follows from a single stage's settings."""

    split_size: int = 1
    """Stages."""
    num_spatial_parts: int | tuple[int, ...] = 1
    """Parts of each spatial stage; one integer stands for all of them."""
    spatial_size: int = 0
    """How many of the stages are spatial: the first ones. If nothing is said: as many as
    `num_spatial_parts` lists; 1 if it is an integer above 1."""
    slice_method: str | tuple[str, ...] = "square"
    """`square`, `vertical`, `horizontal` or a grid such as `2x3`: one for all spatial stages, or
    one for each."""
    parts: int = 1
    """Micro-batches of each batch."""
    schedule: str = "gpipe"
    """One of `mpi4dl.schedule.SCHEDULES`."""
    local_dp: int = 1
    """Ranks that share the batch, in each stage that is not spatial."""
    replicas: int = 1
    """Data parallelism of everything."""
    times: int = 1
    """Batches of a step, which alternate between the two directions of GEMS and Chimera."""
    balance: tuple[int, ...] | None = None
    """Layers of each stage. None: computed."""
    stages_per_actor: int | None = None
    """Of the interleaved schedule. `split_size` counts all of the stages."""
    halo_d2: bool = False
    """Fetch the halos of several layers at once."""
    fused_layers: int = 1
    """How many layers, with `halo_d2`."""
    checkpoint_activations: bool | int = False
    """Compute activations again in backward. True: of every layer; k: of k layers at once."""
    precision: str = "fp32"
    """`fp32`, or autocast to `bf16` or `fp16`."""
    master_comm_opt: bool = False
    """Mirrored ranks exchange gradients with each other, instead of an all-reduce."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in _FORMS:
                form = _FORMS[field.name]
                object.__setattr__(self, field.name, form(field.name, getattr(self, field.name)))
        if self.spatial_size == 0:
            listed = self.num_spatial_parts
            implied = len(listed) if isinstance(listed, tuple) else int(listed > 1)
            object.__setattr__(self, "spatial_size", implied)

    @property
    def spatial_parts(self) -> tuple[int, ...]:
        """Of every spatial stage."""
        parts = self.num_spatial_parts
        return (parts,) * self.spatial_size if isinstance(parts, int) else parts

    @property
    def slice_methods(self) -> tuple[str, ...]:
        """Of every spatial stage."""
        method = self.slice_method
        return (method,) * self.spatial_size if isinstance(method, str) else method

    def tiles(self, stage: int) -> int:
        """The ranks that have the stage together: in one direction of one replica."""
        return self.spatial_parts[stage] if stage < self.spatial_size else self.local_dp

    def kind(self, stage: int) -> StageKind:
        """A stage of a single rank is whole, whatever it could have shared."""
        if self.tiles(stage) == 1:
            return StageKind.WHOLE
        return StageKind.SPATIAL if stage < self.spatial_size else StageKind.BATCH


# ── forms ────────────────────────────────────────────────────────────────────────────────────────


def _integer(name: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise PlanError(f"{name} is {value!r}; it must be an integer")
    return int(value.__index__())


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{name} is {value!r}; it must be a word, such as 'square' or '1f1b'")
    return value.strip()


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PlanError(f"{name} is {value!r}; it must be True or False")
    return value


def _one_or_more(form: Callable[[str, Any], T]) -> Callable[[str, Any], T | tuple[T, ...]]:
    """`4`, `"4"`, or several: `(4, 2)`, `[4, 2]`, `"4,2"`."""

    def read(name: str, value: Any) -> T | tuple[T, ...]:
        if isinstance(value, str) and "," in value:
            value = value.split(",")
        if isinstance(value, (list, tuple)):
            return tuple(form(name, one) for one in value)
        return form(name, value)

    return read


def _balance(name: str, value: Any) -> tuple[int, ...] | None:
    counts = None if value is None else _one_or_more(_integer)(name, value)
    return (counts,) if isinstance(counts, int) else counts


_FORMS: dict[str, Callable[[str, Any], Any]] = {
    "split_size": _integer,
    "num_spatial_parts": _one_or_more(_integer),
    "spatial_size": _integer,
    "slice_method": _one_or_more(_word),
    "parts": _integer,
    "schedule": _word,
    "local_dp": _integer,
    "replicas": _integer,
    "times": _integer,
    "balance": _balance,
    "stages_per_actor": lambda name, value: None if value is None else _integer(name, value),
    "halo_d2": _switch,
    "fused_layers": _integer,
    "checkpoint_activations": lambda name, value: (
        value if isinstance(value, bool) else _integer(name, value)
    ),
    "precision": _word,
    "master_comm_opt": _switch,
}
