"""A backward in two parts: first what the stage before waits for, then the parameters' gradients.

    input ──▶ conv ──▶ norm ──▶ output          on the way from output to input: norm, conv
                ▲        ▲
              weight   scale                    beside the way: what leads to parameters only

The first part visits what is on the way, and keeps what each node got that has parameters beside
it. The second part hands every such node the same again, and asks for the parameters' gradients.
Kernels that compute both compute each once: a node is asked only for what is wanted of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from ..comm.exchange import backward_wants

Gradients = tuple[Tensor | None, ...]


class SplitBackward:
    """Made by doing the first part; `finish` does the second."""

    def __init__(
        self, roots: Sequence[GradientEdge], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> None:
        self._roots, self._gradients = list(roots), list(gradients)
        graph = self._graph = _Graph(roots, inputs)
        self._beside, self._from_roots = graph.beside, graph.from_roots
        self._kept: dict[Node, Gradients] = {}
        if not graph.on_the_way:
            return
        if graph.shared():
            # A parameter beside two nodes: what passes one would be counted at the other again.
            torch.autograd.backward(self._roots, self._gradients)
            self._beside, self._from_roots = {}, []
            return
        handles = [node.register_prehook(self._keep(node)) for node in self._beside]
        try:
            with backward_wants(graph.is_on_the_way):
                torch.autograd.backward(
                    self._roots, self._gradients, retain_graph=True, inputs=list(inputs)
                )
        finally:
            for handle in handles:
                handle.remove()

    def _keep(self, node: Node) -> Callable[[Gradients], None]:
        def keep(gradients: Gradients) -> None:
            self._kept[node] = gradients

        return keep

    def finish(self) -> None:
        """Add the parameters' gradients to theirs."""
        with backward_wants(lambda node, i: not self._graph.is_on_the_way(node, i)):
            if self._from_roots:
                torch.autograd.backward(
                    self._roots, self._gradients, retain_graph=True, inputs=self._from_roots
                )
            for node, gradients in self._kept.items():
                _again(node, gradients, self._beside[node])
        # All of it refers to the graph, and the graph to the activations.
        self.__dict__.clear()


def _again(node: Node, gradients: Gradients, parameters: list[Tensor]) -> None:
    given = [(GradientEdge(node, i), g) for i, g in enumerate(gradients) if g is not None]
    if not given:
        return
    # Hooks on tensors have changed the gradients already, and would do it twice.
    handle = node.register_prehook(lambda _: gradients)
    try:
        torch.autograd.backward(
            [edge for edge, _ in given], [g for _, g in given], inputs=parameters
        )
    finally:
        handle.remove()


class _Graph:
    """The nodes below the roots, and which of them lead to the inputs."""

    def __init__(self, roots: Sequence[GradientEdge], inputs: Sequence[Tensor]) -> None:
        self.roots = [root.node for root in roots]
        targets = {get_gradient_edge(x).node for x in inputs}  # each leaf's own
        self.on_the_way: set[Node] = set()
        self.beside: dict[Node, list[Tensor]] = {}
        """For each node on the way, the parameters that are reached by leaving the way there."""
        for node in _children_first(self.roots):
            children = _children(node)
            leaving = [child for child in children if child not in self.on_the_way]
            if node in targets or len(leaving) < len(children):
                self.on_the_way.add(node)
                parameters = _parameters(leaving)
                if parameters:
                    self.beside[node] = parameters
        self.from_roots = _parameters([r for r in self.roots if r not in self.on_the_way])
        """The parameters beneath roots that are not on the way at all."""

    def is_on_the_way(self, node: Any, i: int) -> bool:
        return node.next_functions[i][0] in self.on_the_way

    def shared(self) -> bool:
        """Whether a parameter is reached from two places."""
        groups = [*self.beside.values(), self.from_roots]
        everything = [id(p) for group in groups for p in group]
        return len(set(everything)) < len(everything)


def _parameters(nodes: Sequence[Node]) -> list[Tensor]:
    """The leaves beneath."""
    leaves = (getattr(node, "variable", None) for node in _children_first(nodes))
    return [leaf for leaf in leaves if leaf is not None]


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _children_first(nodes: Sequence[Node]) -> Iterator[Node]:
    """Everything below, each node once, after all that it leads to. Without recursion."""
    seen: set[Node] = set()
    stack: list[tuple[Node, Any]] = [(node, None) for node in reversed(nodes)]
    while stack:
        node, children = stack.pop()
        if children is None:
            if node in seen:
                continue
            seen.add(node)
            children = iter(_children(node))
        for child in children:
            if child not in seen:
                stack += [(node, children), (child, None)]
                break
        else:
            yield node
