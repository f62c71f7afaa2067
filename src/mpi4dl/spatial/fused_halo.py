"""Fused halos: one wide exchange for a group of layers, then no talk between neighbours.

The tiles that enter the group are fetched with a margin as wide as all its layers together need
(`fused_plan.py`), and everything inside is computed redundantly in the margins (`margin.py`).
Borders of the image get each layer's own padding, and statistics count own pixels only, so the
result is the same. A margin's gradient flows back through the one exchange.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.hooks import RemovableHandle

from .fused_plan import entering
from .margin import Boxes, settled, widened
from .tile import Tile

_plans: WeakKeyDictionary[nn.Module, dict[Any, list[Boxes]]] = WeakKeyDictionary()
_planning = Lock()


def _with_margins(module: nn.Module, values: Any) -> Any:
    """The arguments of a call of `module`, their tiles as wide as it needs them."""
    leaves, structure = tree_flatten(values)
    where = [i for i, v in enumerate(leaves) if isinstance(v, Tile)]
    tiles = [leaves[i] for i in where]
    if not any(t.placement.is_cut for t in tiles) or any(t.margin is not None for t in tiles):
        return values
    key = (module.training, *((i, leaves[i].placement, tuple(leaves[i].shape)) for i in where))
    plans = _plans.setdefault(module, {})
    if key not in plans:

        def call(twin: nn.Module, ghosts: list[Tile]) -> None:
            meta = [
                v.to("meta") if isinstance(v, Tensor) and i not in where else v
                for i, v in enumerate(leaves)
            ]
            for i, ghost in zip(where, ghosts, strict=True):
                meta[i] = ghost
            args, kwargs = tree_unflatten(meta, structure)
            twin(*args, **kwargs)

        plans[key] = _planned(module, tiles, call)
    for i, boxes in zip(where, plans[key], strict=True):
        leaves[i] = widened(leaves[i], boxes)
    return tree_unflatten(leaves, structure)


def _planned(module: nn.Module, tiles: list[Tile], call: Any) -> list[Boxes]:
    try:
        with _planning:  # ranks that are threads share the module
            return entering(module, tiles, call)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        warnings.warn(
            f"{type(module).__name__} runs without fused halos: its dry run on the meta device "
            f"failed with {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return [tile.placement.layout.boxes for tile in tiles]


class FusedHalo(nn.Module):
    """A module whose halos are fetched in one exchange, wide enough for all its layers.

    Exact, like the module itself. Worth it where waiting for neighbours costs more than computing
    margins twice: a few layers on large tiles. The plan is made once for every shape.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(v, Tile) and v.margin for v in tree_leaves((args, kwargs))):
            return self.module(*args, **kwargs)  # part of a larger group
        args, kwargs = _with_margins(self.module, (args, kwargs))
        return settled(self.module(*args, **kwargs))


@dataclass
class _Block:
    """A `with fused_halo()`: how many modules deep the program is."""

    depth: int = 0


_block: ContextVar[_Block | None] = ContextVar("mpi4dl_fused_halo", default=None)


def _enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
    block = _block.get()
    if block is None:
        return None
    block.depth += 1
    return _with_margins(module, (args, {}))[0] if block.depth == 1 else None


def _leave(module: nn.Module, args: Any, output: Any) -> Any:
    block = _block.get()
    if block is None:
        return None
    block.depth -= 1
    return settled(output) if block.depth == 0 else None


class _Hooks:
    """Hooks on all modules of the process, there while some thread is in a block."""

    def __init__(self) -> None:
        self._lock, self._users, self._handles = Lock(), 0, list[RemovableHandle]()

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                before = register_module_forward_pre_hook(_enter)
                self._handles = [before, register_module_forward_hook(_leave, always_call=True)]

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for handle in self._handles:
                    handle.remove()


_hooks = _Hooks()


@contextmanager
def fused_halo() -> Iterator[None]:
    """Inside, every module that is called on tiles fetches the halos of all its layers at once.

        with mpi4dl.fused_halo():
            x = block(x)          # one exchange, however many convolutions there are in block

    As `FusedHalo`, for modules that stay as they are. Keyword arguments get no margin.
    """
    token = _block.set(_Block())
    try:
        with _hooks:
            yield
    finally:
        _block.reset(token)
