"""The state of the whole model, of which each rank has some stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from .setup import Setup


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

    def load(self, state: Mapping[str, Any]) -> None:
        names = {name for kinds in self._kinds for name in kinds}
        missing, unknown = sorted(names - state.keys()), sorted(state.keys() - names)
        if missing or unknown:
            raise PlanError(
                f"this is the state of another model: {len(missing)} names are missing "
                f"({', '.join(missing[:3])}), {len(unknown)} are unknown ({', '.join(unknown[:3])})"
            )
        for stage, module in self._setup.modules.items():
            module.load_state_dict({name: state[name] for name in self._kinds[stage]})
