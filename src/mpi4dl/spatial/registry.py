"""Which function is answered by which rule, and what happens when there is none."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FrameType, MethodDescriptorType
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch._C._functorch import TransformType

from ..errors import UnsupportedOperator

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)

HANDLERS: dict[Any, Handler] = {}

TILE_FIRST: dict[Handler, str] = {}
"""Handlers whose first operand is annotated as a `Tile`, and how that operand is called."""

_transform = torch._C._functorch.peek_interpreter_stack

no_intercept = torch._C.DisableTorchFunctionSubclass
"""Inside this context functions see a tile as the plain local tensor that it is."""

_NAMESPACES = (torch, torch.Tensor, torch.nn.functional, torch.special, torch.linalg, torch._C._nn)


def spatial_op(*functions: Any) -> Callable[[H], H]:
    """Register a rule: `handler(func, *args, **kwargs)` answers calls of `functions` on tiles.

        @mpi4dl.spatial_op(torch.special.expit)
        def expit(func, x):
            return mpi4dl.wrap(func(x.to_local()), x.placement)

    The handler gets the arguments of the call. `tile.to_local()` is this rank's part;
    `mpi4dl.wrap(local, placement)` makes a tile of a result. A handler must take the same
    decisions on every rank, or the ranks wait for each other. Where its first operand is
    annotated `x: Tile`, calls with a plain tensor there (and a tile elsewhere) are refused.
    """

    def register(handler: H) -> H:
        for operand in list(inspect.signature(handler).parameters.values())[1:2]:
            if str(getattr(operand.annotation, "__name__", operand.annotation)) == "Tile":
                TILE_FIRST[handler] = operand.name
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


def named(*names: str) -> Iterator[Any]:
    """Every PyTorch function or method of these names, wherever it lives.

    Names that the installed version does not have are left out.
    """
    for name in names:
        # `torch.cpu` is a module, `torch.half` a dtype and `torch.Tensor.real` a property.
        found = {id(f): f for s in _NAMESPACES if callable(f := getattr(s, name, None))}
        yield from found.values()


def spatial_op_named(*names: str) -> Callable[[H], H]:
    """`spatial_op` for all functions and methods of these names."""
    return spatial_op(*named(*names))


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, tile: type) -> Any:
    """What the rule for `func` makes of this call, in which there is a `tile` somewhere."""
    handler = HANDLERS.get(func)
    if handler is None:
        unsupported(func)
    if _transform() is not None and _transform().key() == TransformType.Vmap:
        refuse(func, "it is called inside torch.vmap", "Make the batch a dimension of operators")
    kwargs = _by_their_names(func, kwargs) if kwargs else {}
    first = TILE_FIRST.get(handler)
    if first is not None and not isinstance(args[0] if args else kwargs.get(first), tile):
        refuse(
            func,
            "its first operand is a plain tensor, which every rank holds whole, and another one is "
            "a tile",
            "Make the first a tile with mpi4dl.shard, or gather the other with .full_tensor()",
        )
    return handler(func, *args, **kwargs)


def _by_their_names(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's names for arguments that may also be given by NumPy's; and no `out`."""
    if kwargs.get("out") is not None:
        refuse(func, "out= cannot be a tile's memory", "Use the returned tile")
    if isinstance(func, (BuiltinFunctionType, MethodDescriptorType)):
        kwargs = {{"axis": "dim", "keepdims": "keepdim"}.get(k, k): v for k, v in kwargs.items()}
    return {k: v for k, v in kwargs.items() if k != "out"}


def current_module() -> str:
    """The name of the innermost module whose forward runs, as in `named_modules`; '' if none.

    Read from the stack, so that it costs nothing until there is something to report.
    """
    frame: FrameType | None = sys._getframe(1)
    modules: list[nn.Module] = []
    while frame is not None:
        module = frame.f_locals.get("self")
        # Modules enter forward through _call_impl; containers' own forward frames count too.
        if frame.f_code.co_name == "forward" and isinstance(module, nn.Module):
            modules.append(module)
        frame = frame.f_back
    if not modules:
        return ""
    inner, outer = modules[0], modules[-1]
    path = next((name for name, module in outer.named_modules() if module is inner), "")
    kind = type(inner).__name__
    return f"{path} ({kind})" if path else kind


def function_name(func: Any) -> str:
    owner = getattr(func, "__self__", None)
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__") and owner is not None:
        return f"Tensor.{getattr(owner, '__name__', owner)}"
    if getattr(torch.nn.functional, name, None) is func:
        return f"torch.nn.functional.{name}"
    for prefix, space in (("Tensor", torch.Tensor), ("torch", torch)):
        if getattr(space, name, None) is func:
            return f"{prefix}.{name}"
    for family in ("linalg", "special"):
        short = name.removeprefix(f"{family}_")
        if getattr(getattr(torch, family), short, None) is func:
            return f"torch.{family}.{short}"
    module = getattr(func, "__module__", None)
    return f"{module}.{name}" if module else name


def refuse(func: Any, why: str, remedy: str) -> NoReturn:
    """Raise the error for a call that tiles cannot answer. The same on every rank."""
    layer = current_module()
    place = f" in layer {layer}" if layer else ""
    raise UnsupportedOperator(f"{function_name(func)}{place}: {why}. {remedy}")


def unsupported(func: Any) -> NoReturn:
    refuse(
        func,
        "there is no rule for this operator on tiles",
        "Register one with @mpi4dl.spatial_op(...), or end the spatial part before it with "
        "tile.full_tensor(), which gathers the whole tensor on every rank",
    )
