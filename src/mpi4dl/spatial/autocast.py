"""Operators that autocast runs in float32, where tiles put them together from other operators.

On a GPU autocast sums, normalises and takes softmax in float32, whatever half precision it is
given: a sum of probabilities over an image is more than float16 can hold. PyTorch itself tells,
once for each kind, with a tensor of one number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import along, extremes, normalization, pad, reductions, resize
from .registry import HANDLERS, Handler, named, spatial_op
from .tile import Tile

_MODULES = (along, extremes, normalization, pad, reductions, resize)
"""Their rules must be there before they are given the dtype that autocast would choose."""

_PROBES: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 1),
    "interpolate": lambda x, mode: F.interpolate(x, scale_factor=2, mode=mode),
    "pad": lambda x, mode: F.pad(x, [1] * int(mode.split()[1]), mode.split()[0]),
}


def _mode(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Which of several kernels is meant, where the dtype depends on that."""
    if name == "interpolate":
        return str(kwargs.get("mode", "nearest"))
    given = dict(zip(("input", "pad", "mode"), args, strict=False)) | kwargs
    if name == "pad" and given.get("mode") in ("reflect", "replicate"):
        return f"{given['mode']} {len(given['pad'])}"
    return ""


@lru_cache(maxsize=1024)
def _dtype_of(
    name: str, ndim: int, kind: torch.dtype, device: torch.device, lower: torch.dtype, mode: str
) -> torch.dtype:
    """The dtype of PyTorch's own result. `lower`, that of autocast, makes the answer another."""
    x = torch.zeros([2] * max(ndim, 2), dtype=kind, device=device)
    return (_PROBES[name](x, mode) if mode else _PROBES[name](x)).dtype


def _as_autocast_would(name: str, x: Any, mode: str) -> Any:
    """The tile in the dtype in which autocast would compute, if that is a wider one."""
    if not isinstance(x, Tile) or x.dtype not in (torch.bfloat16, torch.float16):
        return x
    device = x.device
    if not torch.is_autocast_enabled(device.type):
        return x
    lower = torch.get_autocast_dtype(device.type)
    return x.to(_dtype_of(name, x.ndim, x.dtype, device, lower, mode))


def _in_its_dtype(name: str, handler: Handler) -> Handler:
    @wraps(handler)
    def wide(func: Any, *args: Any, **kwargs: Any) -> Any:
        mode = _mode(name, args, kwargs)
        if name == "pad" and not mode:  # the other modes keep the dtype
            return handler(func, *args, **kwargs)
        if args:
            return handler(func, _as_autocast_would(name, args[0], mode), *args[1:], **kwargs)
        kwargs["input"] = _as_autocast_would(name, kwargs.get("input"), mode)
        return handler(func, **kwargs)

    return wide


for _name in _PROBES:
    for _function in named(_name, f"special_{_name}", f"linalg_{_name}"):
        if _function in HANDLERS:
            spatial_op(_function)(_in_its_dtype(_name, HANDLERS[_function]))
