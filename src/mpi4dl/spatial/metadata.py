"""Questions about a tile, and functions that change how it is stored but not what it is."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from .elementwise import aligned, check_not_severed, severance
from .registry import function_name, named, no_intercept, refuse, spatial_op, spatial_op_named
from .tile import Tile, alias, wrap

_PASS_THROUGH = (
    "dim ndimension is_floating_point is_complex is_signed element_size get_device is_contiguous "
    "is_inference is_conj is_neg retain_grad "
    "register_post_accumulate_grad_hook is_shared __hash__ requires_grad_ detach_ "
    "is_pinned is_distributed data_ptr __setstate__ dim_order stride"
).split()
_PASS_THROUGH_PROPERTIES = (
    "device dtype requires_grad is_cuda is_cpu is_meta is_sparse is_sparse_csr is_quantized "
    "is_nested is_mkldnn is_leaf grad_fn ndim output_nr retains_grad _version _backward_hooks "
    "is_mps is_xla is_xpu is_vulkan is_ipu is_maia is_mtia itemsize name _base "
    "_post_accumulate_grad_hooks _grad_fn grad_dtype _cdata"
).split()


def _properties(names: list[str], access: str) -> list[Any]:
    found = (getattr(torch.Tensor, name, None) for name in names)
    return [getattr(p, access) for p in found if p is not None and hasattr(p, access)]


@spatial_op(
    *named(*_PASS_THROUGH),
    *_properties(_PASS_THROUGH_PROPERTIES, "__get__"),
    *_properties(["requires_grad", "_backward_hooks"], "__set__"),
)
def pass_through(func: Any, *args: Any, **kwargs: Any) -> Any:
    with no_intercept():
        return func(*args, **kwargs)


@spatial_op(*_properties(["shape"], "__get__"))
def shape(func: Any, tile: Tile) -> torch.Size:
    return tile.global_shape


@spatial_op(torch.Tensor.size)
def size(func: Any, tile: Tile, dim: int | None = None) -> torch.Size | int:
    return tile.global_shape if dim is None else tile.global_shape[dim]


@spatial_op_named("numel", "nelement")
def numel(func: Any, tile: Tile) -> int:
    return prod(tile.global_shape)


@spatial_op(torch.Tensor.__len__)
def length(func: Any, tile: Tile) -> int:
    return tile.global_shape[0]


@spatial_op(*_properties(["nbytes"], "__get__"))
def nbytes(func: Any, tile: Tile) -> int:
    return prod(tile.global_shape) * tile.element_size()


@spatial_op(*_properties(["grad", "_grad"], "__get__"))
def grad(func: Any, tile: Tile) -> Tile | None:
    """The gradient of a leaf tile is a tile."""
    with no_intercept():
        value = func(tile)
    return None if value is None else wrap(alias(value), tile.placement)


@spatial_op(*_properties(["grad", "data"], "__set__"))
def set_grad(func: Any, tile: Tile, value: Tensor | None) -> None:
    if value is not None and tuple(value.shape) != tuple(tile.global_shape):
        refuse(
            func,
            f"a tensor of {tuple(value.shape)} in the place of one of {tuple(tile.global_shape)}",
            "Give a tile, or the whole tensor",
        )
    part = None if value is None else alias(aligned(value, tile.placement))
    with no_intercept():
        func(tile, part)


@spatial_op(*_properties(["data"], "__get__"))
def data(func: Any, tile: Tile) -> Tile:
    with no_intercept():
        owner = func(tile)
    owner.severed = severance(tile)
    return wrap(alias(owner), tile.placement)


@spatial_op_named(
    *(
        "clone detach contiguous to type float double half bfloat16 cpu cuda int long bool short "
        "byte char type_as pin_memory positive zero_ fill_ fill resolve_conj "
        "resolve_neg empty_like zeros_like ones_like full_like"
    ).split()
)
def stored_differently(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Same region, other dtype, device, memory format or (constant) content."""
    tile = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tile))
    first = args[0] if args else kwargs.get("input")
    if func.__name__ in ("zero_", "fill_"):
        check_not_severed(func, tile)
    with no_intercept():
        out = func(*args, **kwargs)
        if out is tile and func.__name__ == "contiguous":
            out = _copied_if_the_whole_is(*args, **kwargs)
    if not isinstance(out, Tensor):  # `tile.type()` asks for a name
        return out
    if isinstance(out, Tile) or not isinstance(first, Tile):
        return out  # unchanged, or a plain tensor cast to a tile's dtype
    if func.__name__ == "detach":  # shares the memory, and autograd forgets that it does
        out.severed = severance(tile)  # type: ignore[attr-defined]
    return wrap(out, tile.placement)


def _copied_if_the_whole_is(
    tile: Tile, memory_format: torch.memory_format = torch.contiguous_format
) -> Tensor:
    """A contiguous part of a tensor that need not be contiguous: the part itself, or a copy.

    A part of one row or none is contiguous in any order of its dimensions. But its strides still
    tell which order they are in, and so whether other ranks, and one process, make a copy: who
    writes to the result must not write to the tile here and to something else there.
    """
    shape = [max(n, 1) for n in tile.size()]
    thin = [d for d in tile.placement.cut_dims if shape[d] == 1]
    if not thin:
        return tile
    strides = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    told = [d for d in range(-len(shape), 0) if d in thin or (shape[d] > 1 and not tile.numel())]
    if all(tile.stride(d) == strides[d] for d in told):
        return tile
    return alias(tile).clone(memory_format=memory_format)


@spatial_op_named("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")
def new_replicated(func: Any, tile: Tile, *args: Any, **kwargs: Any) -> Tensor:
    """A plain tensor of the size asked for: every rank holds the whole."""
    if any(isinstance(a, Tile) for a in (*args, *kwargs.values())):
        needs_the_whole(func)
    with no_intercept():
        return func(alias(tile), *args, **kwargs)


@spatial_op(torch.Tensor.__deepcopy__)
def deepcopy(func: Any, tile: Tile, memo: dict[int, Any]) -> Tile:
    if id(tile) in memo:
        return memo[id(tile)]
    with no_intercept():
        copied = func(alias(tile) if not tile.is_leaf else tile.detach(), memo)
        copied = copied.as_subclass(torch.Tensor)
    result = wrap(copied, tile.placement)
    result.requires_grad_(tile.requires_grad)
    memo[id(tile)] = result
    return result


@spatial_op_named(
    *(
        "item tolist numpy __float__ __int__ __bool__ __index__ __array__ __contains__ __complex__ "
        "__dlpack__ is_nonzero equal allclose"
    ).split()
)
def needs_the_whole(func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(
        func,
        "a tile holds only this rank's part, and this needs the whole tensor",
        f"Call .full_tensor() first, which gathers, then {function_name(func)}",
    )


@spatial_op(*named("__repr__", "__format__"))
def text(func: Any, tile: Tile, *args: Any, **kwargs: Any) -> str:
    return Tile.__repr__(tile)
