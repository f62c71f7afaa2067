"""Dropout and other random operators: every tile its own randomness, one seed for a run.

Ranks are seeded alike, so that tensors which all of them hold get the same random numbers.
For a tile each rank draws one number from that common stream, which keeps the streams in
step, and seeds a stream of its own with it and with the position of the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .agree import raised_together
from .elementwise import check_not_severed
from .placement import Placement
from .registry import named, no_intercept, refuse, spatial_op
from .tile import Tile, wrap

_LARGE_PRIME = 1_000_003


@contextmanager
def own_stream(x: Tensor, placement: Placement) -> Iterator[None]:
    """Random numbers drawn inside differ from rank to rank; outside, ranks stay in step."""
    seed = int(torch.randint(2**62, ()).item())
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # The generators mix their seed; consecutive seeds give unrelated streams.
        torch.manual_seed((seed + _LARGE_PRIME * placement.comm.rank) % 2**63)
        yield


_POINTWISE = (
    "dropout alpha_dropout bernoulli bernoulli_ rand_like randn_like randint_like normal_ uniform_ "
    "exponential_ geometric_ log_normal_ cauchy_ rrelu rrelu_ random_ dropout_ "
    "alpha_dropout_"
).split()


@spatial_op(*named(*_POINTWISE))
def pointwise_random(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
        refuse(func, "its probabilities are a tensor", "Compare torch.rand_like(tile) with them")
    if kwargs.get("generator") is not None:
        refuse(
            func,
            "a generator of its own would give every tile the same numbers",
            "Leave it out: torch.manual_seed decides what tiles draw",
        )
    if kwargs.get("inplace") or func.__name__.endswith("_"):
        check_not_severed(func, input)
    with own_stream(input, input.placement), no_intercept():
        if func is torch.bernoulli or func is torch.Tensor.bernoulli:  # of numbers beyond 0 and 1
            result = raised_together(
                lambda: func(input, *args, **kwargs), input.device, input.placement.comm
            )
        else:
            result = func(input, *args, **kwargs)
    if isinstance(result, Tile) or not isinstance(result, Tensor):
        return result
    return wrap(result, input.placement)


@spatial_op(*named("dropout1d", "dropout2d", "dropout3d", "feature_dropout"))
def channel_dropout(func: Any, input: Tile, *args: Any, **kwargs: Any) -> Any:
    """Drops whole channels: one mask of batch × channels, drawn alike on every rank."""
    in_place = kwargs.pop("inplace", False)
    batched = {"dropout1d": 3, "dropout2d": 4, "dropout3d": 5}.get(func.__name__, input.ndim)
    lead = 2 if input.ndim >= batched else 1
    shape = (*input.shape[:lead], *[1] * (input.ndim - lead))
    mask = func(torch.ones(shape, dtype=input.dtype, device=input.device), *args, **kwargs)
    return input.mul_(mask) if in_place else input * mask


@spatial_op(F.gumbel_softmax, *named("multinomial", "poisson", "feature_alpha_dropout"))
def refused(func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(func, "it has no rule on tiles", "Draw with torch.rand_like(tile) and compare")
