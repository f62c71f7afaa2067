"""A copy of a module for dry runs."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy


def meta_twin(module: nn.Module) -> nn.Module:
    """A copy on the meta device that does nothing but compute: no data, no hooks.

    Parameters and buffers are never copied, so it costs no memory however large the module is.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        if is_lazy(parameter):
            continue
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.to("meta")
    for part in module.modules():
        for name, value in vars(part).items():
            if name.endswith("_hooks") and isinstance(value, dict):
                memo[id(value)] = type(value)()  # what hangs on a hook may be no thing to copy
    return copy.deepcopy(module, memo)
