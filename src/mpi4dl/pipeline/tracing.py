"""Cutting a model that is not a sequence, by tracing its forward.

    forward          split points: middle, up         between the pieces

    a = down(x)      piece 0: a                       (a,) is just a
    b = middle(a)    piece 1: b                       (a, b): the skip and the current tensor
    c = up(b)        piece 2: c and the sum
    return c + a

Only modules that contain a split point are traced through; all others stay what they are, control
flow, hooks and all. Each piece takes every value that is still needed and gives the next ones, so
that a skip travels through the stages between its two ends.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Sequence
from threading import Lock
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from ..errors import PlanError
from .part import Piece

_tracing = Lock()
"""While it traces, torch.fx replaces the calls of all modules of the process."""


def traced_pieces(model: nn.Module, split_points: Sequence[str]) -> tuple[Piece, ...]:
    """One piece more than there are split points."""
    _check_names(model, split_points)
    with _tracing:
        graph, constants = _same_in_both_modes(model, tuple(split_points))
    groups = _grouped(graph, split_points)
    cut = _Cut(groups)
    return tuple(Piece(cut.piece(number), model, constants) for number in range(len(groups)))


def _check_names(model: nn.Module, split_points: Sequence[str]) -> None:
    known = dict(model.named_modules())
    for name in split_points:
        if not name or name not in known:
            children = ", ".join(name for name, _ in model.named_children())
            raise PlanError(
                f"split point {name!r} is no submodule of {type(model).__name__}; it has {children}"
            )
    if len(set(split_points)) < len(split_points):
        raise PlanError(f"the split points {tuple(split_points)} name a submodule twice")


# ── the trace ────────────────────────────────────────────────────────────────────────────────────


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # or what is computed of buffers alone would be a constant

    def __init__(self, split_points: tuple[str, ...]) -> None:
        super().__init__()
        self.split_points = split_points

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not _contains(module_qualified_name, self.split_points)


def _contains(path: str, split_points: Sequence[str]) -> bool:
    return path == "" or any(point.startswith(f"{path}.") for point in split_points)


def _same_in_both_modes(
    model: nn.Module, split_points: tuple[str, ...]
) -> tuple[fx.Graph, dict[str, Any]]:
    """A trace keeps one branch of `if self.training`, so there must not be two."""
    through = [m for path, m in model.named_modules() if _contains(path, split_points)]
    modes = [module.training for module in through]
    traces = []
    try:
        for training in (False, True):
            for module in through:
                module.training = training
            traces.append(_trace(model, split_points))
    finally:
        for module, training in zip(through, modes, strict=True):
            module.training = training
    if len({str(graph) for graph, _ in traces}) > 1:
        raise PlanError(
            f"{type(model).__name__}.forward computes something else in training than in "
            "evaluation: put what depends on self.training into a submodule, as nn.Dropout does"
        )
    return traces[0]


def _trace(model: nn.Module, split_points: tuple[str, ...]) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of forward, and the tensors that it makes out of nothing."""
    defaults = _defaults(model)
    before = set(vars(model))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it cannot check all defaults, which are not changed
            graph = _Tracer(split_points).trace(model, concrete_args=defaults)
    except Exception as error:
        raise PlanError(
            f"{type(model).__name__}.forward cannot be traced ({type(error).__name__}: {error}): "
            "put what depends on values into a submodule, or give the model a method layers()"
        ) from error
    finally:
        left = {name: vars(model).pop(name) for name in set(vars(model)) - before}
    for node in list(graph.find_nodes(op="placeholder")):
        if node.args:  # the default
            _forget(node)
    return graph, {name: value for name, value in left.items() if isinstance(value, Tensor)}


def _defaults(model: nn.Module) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PlanError(
                f"{type(model).__name__}.forward takes {parameter}, which is not known before it "
                "is called: name its inputs"
            )
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _forget(node: fx.Node) -> None:
    """Arguments with a default keep it; what is left of them are checks that they do."""
    for user in list(node.users):
        _forget(user)
    node.graph.erase_node(node)


# ── the pieces ───────────────────────────────────────────────────────────────────────────────────


def _grouped(graph: fx.Graph, split_points: Sequence[str]) -> list[list[fx.Node]]:
    """The nodes of each piece, in order; without parameters, which belong to whoever uses them."""
    waiting = set(split_points)
    groups: list[list[fx.Node]] = [[]]
    for node in graph.nodes:
        if node.op == "get_attr":
            continue
        for point in _begun(node, waiting):
            if all(n.op == "placeholder" for n in groups[-1]):
                raise PlanError(
                    f"{point!r} is where piece {len(groups) - 1} begins already: name only "
                    "submodules that begin a new one"
                )
            waiting.discard(point)
            groups.append([])
        groups[-1].append(node)
    if waiting:
        raise PlanError(f"the split points {sorted(waiting)} are never called in forward")
    return groups


def _begun(node: fx.Node, waiting: set[str]) -> list[str]:
    """The split points that a node is the first call of: itself, or one that contains it."""
    if node.op != "call_module":
        return []
    path = str(node.target)
    return sorted(point for point in waiting if f"{path}.".startswith(f"{point}."))


class _Cut:
    """A traced forward in groups of nodes, and the values that travel between them."""

    def __init__(self, groups: list[list[fx.Node]]) -> None:
        self.groups = groups
        self.owner = {node: number for number, group in enumerate(groups) for node in group}

    def arriving(self, number: int) -> list[fx.Node]:
        """What piece `number` and those after it need of those before; at first, the inputs."""
        if number == 0:
            return [node for node in self.groups[0] if node.op == "placeholder"]
        made = (node for group in self.groups[:number] for node in group)
        return [n for n in made if any(self.owner[user] >= number for user in n.users)]

    def piece(self, number: int) -> fx.Graph:
        graph = fx.Graph()
        env = _received(graph, self.arriving(number))

        def value(node: fx.Node) -> fx.Node:
            if node not in env:  # a parameter
                env[node] = graph.get_attr(str(node.target))
            return env[node]

        for node in self.groups[number]:
            if node.op == "output":
                graph.output(map_arg(node.args[0], value))
            elif node.op != "placeholder":
                env[node] = graph.node_copy(node, value)
        if number < len(self.groups) - 1:
            leaving = [env[node] for node in self.arriving(number + 1)]
            graph.output(leaving[0] if len(leaving) == 1 else tuple(leaving))
        return graph


def _received(graph: fx.Graph, arriving: list[fx.Node]) -> dict[fx.Node, fx.Node]:
    """One value comes as it is, several come as a tuple."""
    values = graph.placeholder("values")
    if len(arriving) == 1:
        return {arriving[0]: values}
    return {
        node: graph.call_function(operator.getitem, (values, index))
        for index, node in enumerate(arriving)
    }
