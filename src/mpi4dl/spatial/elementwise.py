"""Operators that treat every pixel by itself. Tiles of equal placement need nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .agree import raised_together
from .placement import Placement
from .registry import named, no_intercept, refuse, spatial_op
from .tile import Tile, alias, narrowed, redistribute, wrap

_FUNCTIONS = (
    # activations
    "relu relu6 elu selu celu gelu silu mish sigmoid logsigmoid log_sigmoid hardsigmoid hardswish "
    "hardtanh hardshrink leaky_relu softplus softshrink softsign tanh tanhshrink threshold "
    "_threshold "
    # one operand
    "abs absolute acos arccos acosh arccosh asin arcsin asinh arcsinh atan arctan atanh arctanh "
    "bitwise_not ceil conj cos cosh deg2rad rad2deg digamma erf erfc erfinv exp exp2 expm1 expit "
    "fix floor frac i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 "
    "logical_not logit nan_to_num neg negative real reciprocal round rsqrt sgn sign signbit sin "
    "sinc sinh sqrt square tan trunc polygamma mvlgamma xlog1py entr ndtr log_ndtr erfcx "
    # several operands
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow "
    "float_power atan2 arctan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift clamp clamp_min clamp_max clip copysign eq ne not_equal ge "
    "greater_equal gt greater le less_equal lt less fmax fmin maximum minimum heaviside hypot "
    "ldexp lerp logaddexp logaddexp2 logical_and logical_or logical_xor nextafter rsub where "
    "xlogy addcdiv addcmul masked_fill isclose"
).split()
_DUNDERS = (
    "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv div rdiv idiv floordiv "
    "rfloordiv ifloordiv mod rmod imod pow rpow ipow and rand iand or ror ior xor rxor ixor "
    "lshift rlshift ilshift rshift rrshift irshift neg pos abs invert eq ne lt le gt ge"
).split()


def aligned(value: Any, placement: Placement) -> Any:
    """An operand as it must be beside a tile of `placement`."""
    if isinstance(value, Tile):
        if value.placement is placement or value.placement == placement:
            return value
        return _broadcast_or_moved(value, placement)
    if isinstance(value, Tensor) and value.ndim:
        return narrowed(value, placement)
    return value


def _broadcast_or_moved(tile: Tile, placement: Placement) -> Tensor:
    shape = tile.global_shape
    sizes = placement.global_sizes
    if all(len(shape) < -d or shape[d] == 1 or shape[d] == n for d, n in sizes.items()):
        if any(len(shape) < -d or shape[d] == 1 != n for d, n in sizes.items()):
            # Broadcast along a cut dimension: one row or column of it goes to every rank.
            return narrowed(tile.full_tensor(), placement)
        return redistribute(tile, placement)
    # Sizes that cannot be broadcast: let PyTorch's message speak of the global shapes.
    torch.broadcast_shapes(shape, tuple(sizes.get(d, 1) for d in range(min(sizes), 0)))
    raise RuntimeError(f"a tensor of {tuple(shape)} for one that has the sizes {sizes} there")


def _target(tiles: list[Tile]) -> Placement:
    """The placement of the result: that of the first tile which is not broadcast itself."""
    first = tiles[0].placement
    if all(t.placement is first for t in tiles):
        return first
    shape = torch.broadcast_shapes(*(t.global_shape for t in tiles))
    for tile in tiles:
        sizes = tile.placement.global_sizes
        if all(len(shape) >= -d and shape[d] == n for d, n in sizes.items()):
            return tile.placement
    raise ValueError(f"tiles of {[tuple(t.global_shape) for t in tiles]} broadcast each other")


def placed_together(func: Any, args: tuple[Any, ...]) -> tuple[Placement, list[Any]]:
    """The common placement of all operands, and the operands as this rank needs them."""
    tiles = [a for a in args if isinstance(a, Tile)]
    try:
        placement = _target(tiles)
    except ValueError as error:
        refuse(func, str(error), "Expand one of them to the full size first")
    return placement, [aligned(a, placement) for a in args]


def _alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Placement | None:
    """The placement of all tiles among the operands, if nothing has to be done to any operand."""
    placement: Placement | None = None
    plain: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tile):
            if placement is None:
                placement = value.placement
            elif value.placement is not placement:
                return None
        elif isinstance(value, Tensor):
            plain.append(value)
    if plain and placement is not None:
        for value in plain:  # those that broadcast along every axis need not be narrowed
            if any(value.ndim >= -d and value.shape[d] != 1 for d in placement.dims):
                return None
    return placement


def elementwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run `func` on the local parts. Replicated operands are narrowed, other layouts moved."""
    if "out" in kwargs:
        refuse(func, "out= cannot be a tile's memory", "Use the returned tile")
    if kwargs.get("inplace"):
        check_not_severed(func, args[0])
    placement = _alone(args, kwargs)
    if placement is None:
        keys = list(kwargs)
        placement, values = placed_together(func, (*args, *kwargs.values()))
        args = tuple(values[: len(args)])
        kwargs = dict(zip(keys, values[len(values) - len(keys) :], strict=True))
    if func in _DIVISIONS and _of_integers(func, args, kwargs):
        out = _divided(func, args, kwargs, placement)
    else:
        with no_intercept():
            out = func(*args, **kwargs)
    if isinstance(out, tuple):  # torch.where(condition)
        refuse(
            func,
            "with a condition alone it finds positions, and every rank only its own",
            "Give the values to choose from as well, or call .full_tensor() on the condition",
        )
    if isinstance(out, Tile) or not isinstance(out, Tensor):
        return out
    return wrap(out, placement)


def severance(tile: Tensor) -> str:
    """Why writing to the tile would miss the tensor that it should be a view of; '' if it is one.

    The note is on the tensor that owns the memory, so that views have it too.
    """
    with no_intercept():
        memory = tile if tile._base is None else tile._base
    return getattr(memory, "severed", "")


def check_not_severed(func: Any, target: Tile) -> None:
    """Writing to what had to become a copy would silently miss the tensor it was a view of."""
    severed = severance(target)
    if severed:
        refuse(func, severed, "Write out of place, or use reshape instead of view")


def elementwise_inplace(func: Any, *args: Any, **kwargs: Any) -> Any:
    """As `elementwise`; the result is the first operand, whose boxes everything else follows."""
    target = args[0] if args else kwargs.get("input")
    if not isinstance(target, Tile):
        refuse(
            func,
            "a plain tensor, which every rank holds whole, cannot be changed in place by a tile",
            "Write it out of place, with the tile first",
        )
    check_not_severed(func, target)
    placement = target.placement
    values = [aligned(a, placement) for a in args]
    named_values = {k: aligned(v, placement) for k, v in kwargs.items()}
    if func in _DIVISIONS and _of_integers(func, values, named_values):
        out = _divided(func, values, named_values, placement)
    else:
        with no_intercept():
            out = func(*values, **named_values)
    return out if isinstance(out, Tile) else wrap(out, placement)


_DIVISIONS = frozenset(
    named(
        *"div divide div_ divide_ floor_divide floor_divide_ remainder remainder_ fmod".split(),
        *"fmod_ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__".split(),
    )
)


def _of_integers(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a zero to divide by is an error."""
    if func.__name__.startswith("div") and not kwargs.get("rounding_mode"):
        return False
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return not any(tensor.is_floating_point() for tensor in tensors)


def _divided(func: Any, args: Sequence[Any], kwargs: dict[str, Any], placement: Placement) -> Any:
    """The rank that divides by zero tells the others."""

    def compute() -> Any:
        with no_intercept():
            return func(*args, **kwargs)

    values = (*args, *kwargs.values())
    device = next(value.device for value in values if isinstance(value, Tensor))
    return raised_together(compute, device, placement.comm)


_IN_PLACE_DUNDERS = {"iadd", "isub", "imul", "itruediv", "idiv", "ifloordiv", "imod", "ipow"} | {
    "iand",
    "ior",
    "ixor",
    "ilshift",
    "irshift",
}
spatial_op(*named(*_FUNCTIONS))(elementwise)
spatial_op(*named(*(f"__{d}__" for d in _DUNDERS if d not in _IN_PLACE_DUNDERS)))(elementwise)
spatial_op(*named("copy_", *(f"{name}_" for name in _FUNCTIONS)))(elementwise_inplace)
spatial_op(*named(*(f"__{d}__" for d in _IN_PLACE_DUNDERS)))(elementwise_inplace)


@spatial_op(*named("is_same_size"))
def is_same_size(func: Any, a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


@spatial_op(*named("prelu", "_prelu_kernel"))
def prelu(func: Any, x: Tile, weight: Tensor) -> Tile:
    """One slope for each channel, which is dimension 1 whatever comes after it."""
    if 1 - x.ndim in x.placement.cut_dims:
        refuse(func, "the channels are split over ranks", "Split batch or image dimensions only")
    if weight.numel() != 1:
        weight = weight.view(-1, *[1] * (x.ndim - 2))
    with no_intercept():
        return wrap(func(alias(x), weight.flatten()), x.placement)


@spatial_op(torch.nn.functional.glu, torch._C._nn.glu)
def glu(func: Any, x: Tile, dim: int = -1) -> Tile:
    if dim % x.ndim - x.ndim in x.placement.global_sizes:
        refuse(func, f"dimension {dim} is split over ranks", "Gate over the channels")
    with no_intercept():
        return wrap(func(alias(x), dim), x.placement)
