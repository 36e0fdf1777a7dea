"""Split backward: computes input gradients first and weight gradients later.

    x ──► linear ──► relu ──► linear ──► y         the path from y to x:   I runs along it
            ▲                   ▲                  side edges:             W runs along them
            w1                  w2

`NaiveHalves` calls autograd twice: W runs along the whole path again to reach the weights.
`Halves` saves, during I, the gradients at the nodes where side edges leave the path, and W starts
there. Neither frees activations before W. Qi et al. 2024, "Zero Bubble Pipeline Parallelism".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from dtlab.torch_internals import run_backward

__all__ = ["Halves", "NaiveHalves"]

Gradients = Sequence[Tensor | None]


class NaiveHalves:
    """The backward pass of one microbatch on one stage; `outputs` and `inputs` bound its graph.

    Inputs are leaves that need a gradient. Outputs are given as gradient edges, so that their
    values can be freed. The last call, of `both` or of `weights`, frees the graph.
    """

    def __init__(self, outputs: Sequence[GradientEdge], inputs: Sequence[Tensor]) -> None:
        self.outputs, self.graph_inputs = list(outputs), list(inputs)
        self.gradients: list[Tensor] = []  # of the outputs

    def both(self, gradients: Sequence[Tensor]) -> Gradients:
        """B: return the gradients of the inputs; add those of the weights to their `.grad`."""
        _accumulate(self.outputs, gradients)
        gradients_of_inputs = [tensor.grad for tensor in self.graph_inputs]
        self.outputs, self.graph_inputs = [], []
        return gradients_of_inputs

    def inputs(self, gradients: Sequence[Tensor]) -> Gradients:
        """I: return the gradients of the inputs."""
        self.gradients = list(gradients)
        if not self.graph_inputs or not self.outputs:
            return [None] * len(self.graph_inputs)
        return _gradients(self.outputs, self.gradients, self.graph_inputs, keep_graph=True)

    def weights(self) -> None:
        """W, after I: add the gradients of the weights to their `.grad`."""
        _accumulate(self.outputs, self.gradients)
        self.outputs, self.graph_inputs, self.gradients = [], [], []


class Halves(NaiveHalves):
    """Like `NaiveHalves`, but W does not repeat any computation of I.

    If several operations of a stage use a weight directly, I and W run as in `NaiveHalves`.
    """

    def inputs(self, gradients: Sequence[Tensor]) -> Gradients:
        """I: return the gradients of the inputs, and save the gradients that W needs."""
        self._exits: list[_Exit] = []
        self._caught: dict[Node, Sequence[Tensor | None]] = {}
        if self.graph_inputs and self.outputs:
            roots = [edge.node for edge in self.outputs]
            goals = [get_gradient_edge(tensor).node for tensor in self.graph_inputs]
            path = _Path(roots, goals)
            self._exits = path.exits() if path.is_simple() else []
        handles = [self._catch_at(exit_.node) for exit_ in self._exits]
        try:
            input_gradients = super().inputs(gradients)
        finally:
            for handle in handles:
                handle.remove()
        if self._exits:  # W starts at outputs that do not lead to the inputs
            ends = zip(self.outputs, self.gradients, strict=True)
            beside = [(edge, gradient) for edge, gradient in ends if not path.leads[edge.node]]
            self.outputs = [edge for edge, _ in beside]
            self.gradients = [gradient for _, gradient in beside]
        return input_gradients

    def _catch_at(self, node: Node) -> torch.utils.hooks.RemovableHandle:
        caught = self._caught
        return node.register_prehook(lambda gradients: caught.__setitem__(node, gradients))

    def weights(self) -> None:
        """W, after I: add the gradients of the weights, starting from the saved gradients."""
        for exit_ in self._exits:
            arrived = [
                (GradientEdge(exit_.node, number), gradient)
                for number, gradient in enumerate(self._caught.get(exit_.node, ()))
                if gradient is not None
            ]
            if arrived:
                edges, gradients = zip(*arrived, strict=True)
                side_gradients = _gradients(edges, gradients, exit_.sides)
                for side, gradient in zip(exit_.sides, side_gradients, strict=True):
                    if gradient is not None:
                        self.outputs.append(side)
                        self.gradients.append(gradient)
        self._exits = []
        self._caught.clear()  # break the reference cycle from hooks to this dict to nodes to hooks
        super().weights()


def _accumulate(ends: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    """Add gradients to `.grad` of everything that `ends` depend on, given the ends' gradients."""
    if ends:
        run_backward(ends, gradients)


def _gradients(
    ends: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    wanted: Sequence[Tensor | GradientEdge],
    keep_graph: bool = False,
) -> Gradients:
    """Return the gradients of `ends` with respect to `wanted`; None if no end depends on a tensor.

    `ends` are the graph edges at which backward starts, and `gradients` are their gradients.
    """
    return run_backward(ends, gradients, wanted, keep_graph=keep_graph)


class _Exit(NamedTuple):
    """A node on the path, and the edges that leave the path there."""

    node: Node
    sides: list[GradientEdge]


class _Path:
    """The part of a graph between roots and goals. `leads`: whether a node leads to a goal."""

    def __init__(self, roots: Sequence[Node], goals: Sequence[Node]) -> None:
        self.leads: dict[Node, bool] = dict.fromkeys(goals, True)
        self._parents: Counter[Node] = Counter(set(roots))
        self._goals = set(goals)
        stack = [(root, False) for root in roots]
        while stack:
            node, is_through = stack.pop()
            if not is_through and node in self.leads:
                continue
            followers = {follower for follower, _ in node.next_functions if follower is not None}
            if is_through:  # all its followers are known
                self.leads[node] = any(self.leads[follower] for follower in followers)
                continue
            self.leads[node] = False
            self._parents.update(followers)
            stack.append((node, True))
            stack += [(follower, False) for follower in followers]

    def exits(self) -> list[_Exit]:
        """Return the nodes at which weights join the path."""
        exits = []
        for node, leads in self.leads.items():
            if not leads or node in self._goals:
                continue
            edges = dict.fromkeys(
                GradientEdge(follower, number)
                for follower, number in node.next_functions
                if follower is not None and not self.leads[follower]
            )
            if edges:
                exits.append(_Exit(node, list(edges)))
        return exits

    def is_simple(self) -> bool:
        """Return whether each side edge is the only edge to its node."""
        sides = (side.node for exit_ in self.exits() for side in exit_.sides)
        return all(self._parents[side] == 1 for side in sides)
