"""The state of the whole model, of which each rank has some stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from .setup import Setup


@dataclass(frozen=True)
class NotLoaded:
    """Names that a state and the model do not share; false if there are none."""

    missing: tuple[str, ...]
    """Of the model: they are what they were."""
    unexpected: tuple[str, ...]
    """Of the state."""
    mismatched: tuple[str, ...]
    """Of both, with other shapes: they are what they were."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        kinds = {
            "missing, left as they were": self.missing,
            "of another shape, left as they were": self.mismatched,
            "unknown to the model": self.unexpected,
        }
        lines = [f"{what}: {', '.join(names)}" for what, names in kinds.items() if names]
        return "\n".join(lines) or "all loaded"


class WholeState:
    def __init__(self, stages: Sequence[nn.Module], setup: Setup) -> None:
        self._setup = setup
        self._kinds = [
            {name: (tuple(t.shape), t.dtype) for name, t in stage.state_dict().items()}
            for stage in stages
        ]

    def collected(self) -> dict[str, Tensor]:
        """Each stage's from the first rank that has it. Collective."""
        whole: dict[str, Tensor] = {}
        for stage, kinds in enumerate(self._kinds):
            module = self._setup.modules.get(stage)
            own = {} if module is None else module.state_dict()
            for name, (shape, dtype) in kinds.items():
                if module is None:
                    whole[name] = torch.empty(shape, dtype=dtype, device=self._setup.device)
                else:
                    whole[name] = own[name].detach().clone(memory_format=torch.contiguous_format)
                self._pass_on(stage, whole[name])
        return whole

    def _pass_on(self, stage: int, tensor: Tensor) -> None:
        world, have = self._setup.world, self._setup.plan.mesh.copies(stage)
        lack = [rank for rank in range(world.size) if rank not in have]
        if world.rank == have[0] and lack:
            world.start([(rank, tensor) for rank in lack], []).wait()
        elif world.rank in lack:
            world.start([], [(have[0], tensor)]).wait()

    def load(self, state: Mapping[str, Any], strict: bool) -> NotLoaded:
        ours = {name: shape for kinds in self._kinds for name, (shape, _) in kinds.items()}
        shapes = getattr(state, "shapes", None) or {n: tuple(t.shape) for n, t in state.items()}
        left = NotLoaded(
            tuple(name for name in ours if name not in shapes),
            tuple(name for name in shapes if name not in ours),
            tuple(
                f"{name} ({shapes[name]} in the state, {shape} in the model)"
                for name, shape in ours.items()
                if name in shapes and shapes[name] != shape
            ),
        )
        if left and strict:
            raise PlanError(
                f"this is the state of another model: {len(left.missing)} names are missing "
                f"({', '.join(left.missing[:3])}), {len(left.unexpected)} are unknown "
                f"({', '.join(left.unexpected[:3])}), {len(left.mismatched)} have other shapes "
                f"({', '.join(left.mismatched[:3])}). strict=False loads the rest"
            )
        for stage, module in self._setup.modules.items():
            fits = [n for n in self._kinds[stage] if n in shapes and shapes[n] == ours[n]]
            module.load_state_dict({name: state[name] for name in fits}, strict=False)
        return left
