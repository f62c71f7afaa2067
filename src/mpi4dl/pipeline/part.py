"""Layers of a model in a row, with the names that their parameters have in the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn


class Piece(nn.Module):
    """What a traced forward computes between two split points.

    Takes the value that is still needed, or a tuple of several, and gives the next. Submodules
    and parameters are those of the model, and are called the same.
    """

    def __init__(self, graph: fx.Graph, model: nn.Module, constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        code = graph.python_code("self")
        names = dict(code.globals)
        exec(compile(code.src, f"<a piece of {type(model).__name__}>", "exec"), names)
        self.code: str = code.src
        self._compute = names["forward"]
        for node in graph.nodes:
            path = str(node.target)
            if path in constants:
                self.register_buffer(path, constants[path], persistent=False)
            elif node.op in ("call_module", "get_attr"):
                graft(self, model, path)

    def forward(self, values: Any) -> Any:
        return self._compute(self, values)


class Part(nn.Sequential):
    """A row of layers that are anywhere in a model, each registered under its own path there.

    So the keys of the `state_dict` are the model's, also where a plain `nn.Sequential` would have
    to give other ones: layers inside of layers, a layer that comes twice, and pieces of a trace.
    """

    def __init__(self, model: nn.Module, layers: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self._row = tuple(layer for _, layer in layers)
        for path, layer in layers:
            if isinstance(layer, Piece):
                _merge(self, layer)
            else:
                graft(self, model, path, layer)
        for layer in self._row:
            if isinstance(layer, Piece):
                # One registry for all: what moves or replaces a tensor does it for every piece.
                for registry in ("_parameters", "_buffers", "_modules"):
                    vars(layer)[registry] = vars(self)[registry]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, index: int | slice) -> Any:
        return nn.Sequential(*self._row[index]) if isinstance(index, slice) else self._row[index]


def graft(tree: nn.Module, model: nn.Module, path: str, thing: Any = None) -> None:
    """Register what `model` has at `path` (or `thing`) at the same path of `tree`."""
    *containers, name = path.split(".")
    source = model
    for container in containers:
        source = getattr(source, container)
        if container not in tree._modules:
            tree.add_module(container, nn.Module())
        tree = getattr(tree, container)
        if tree is source:
            return  # there with all that it contains
    thing = getattr(source, name) if thing is None else thing
    if isinstance(thing, Tensor) and not isinstance(thing, nn.Parameter):
        persistent = name in source._buffers and name not in source._non_persistent_buffers_set
        tree.register_buffer(name, thing, persistent=persistent)
    else:
        setattr(tree, name, thing)


def _merge(tree: nn.Module, other: nn.Module) -> None:
    """Register in `tree` what `other` has, container by container."""
    for name, buffer in other._buffers.items():
        tree.register_buffer(name, buffer, name not in other._non_persistent_buffers_set)
    for name, parameter in other._parameters.items():
        tree.register_parameter(name, parameter)
    for name, module in other._modules.items():
        here = tree._modules.get(name)
        if here is None or module is None or type(module) is not nn.Module:
            tree.add_module(name, module)
        elif type(here) is nn.Module:
            _merge(here, module)
