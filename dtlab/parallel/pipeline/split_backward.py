"""Split backward: computes input gradients first and weight gradients later.

    x ──► linear ──► relu ──► linear ──► y         the path from y to x:   I goes along it
            ▲                   ▲                  side edges:             W goes along them
            w1                  w2

`NaiveHalves` asks autograd twice: to get at the weights, W goes along the whole path again.
`Halves` keeps, during I, the gradients that arrive where side edges leave the path; there W
starts. Neither frees activations before W. Qi et al. 2024, "Zero Bubble Pipeline Parallelism".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

__all__ = ["Halves", "NaiveHalves"]

Gradients = Sequence[Tensor | None]


class NaiveHalves:
    """One microbatch on one stage. `outputs` and `inputs` are the ends of its graph.

    Inputs are leaves that need a gradient, outputs are given as edges, so that their values can
    be freed. Whichever is called last, `both` or `weights`, frees the graph.
    """

    def __init__(self, outputs: Sequence[GradientEdge], inputs: Sequence[Tensor]) -> None:
        self.outputs, self.own_inputs = list(outputs), list(inputs)
        self.gradients: list[Tensor] = []  # of the outputs

    def both(self, gradients: Sequence[Tensor]) -> Gradients:
        """B: the gradients of the inputs; those of the weights are added to their `.grad`."""
        _accumulate(self.outputs, gradients)
        found = [one.grad for one in self.own_inputs]
        self.outputs, self.own_inputs = [], []
        return found

    def inputs(self, gradients: Sequence[Tensor]) -> Gradients:
        """I: the gradients of the inputs."""
        self.gradients = list(gradients)
        if not self.own_inputs or not self.outputs:
            return [None] * len(self.own_inputs)
        return _gradients(self.outputs, self.gradients, self.own_inputs, keep_graph=True)

    def weights(self) -> None:
        """W, after I: the gradients of the weights are added to their `.grad`."""
        _accumulate(self.outputs, self.gradients)
        self.outputs, self.own_inputs, self.gradients = [], [], []


class Halves(NaiveHalves):
    """The same, and W does nothing that I has done.

    Where a weight, as it is, is used more than once in a stage, it goes the naive way.
    """

    def inputs(self, gradients: Sequence[Tensor]) -> Gradients:
        """See `NaiveHalves`; gradients that W needs are caught on their way."""
        self._exits: list[_Exit] = []
        self._caught: dict[Node, Sequence[Tensor | None]] = {}
        if self.own_inputs and self.outputs:
            roots = [edge.node for edge in self.outputs]
            goals = [get_gradient_edge(one).node for one in self.own_inputs]
            path = _Path(roots, goals)
            self._exits = path.exits() if path.is_simple() else []
        handles = [self._catch_at(leave.node) for leave in self._exits]
        try:
            found = super().inputs(gradients)
        finally:
            for handle in handles:
                handle.remove()
        if self._exits:  # what does not lead to the inputs is W's alone
            ends = zip(self.outputs, self.gradients, strict=True)
            beside = [(edge, gradient) for edge, gradient in ends if not path.leads[edge.node]]
            self.outputs = [edge for edge, _ in beside]
            self.gradients = [gradient for _, gradient in beside]
        return found

    def _catch_at(self, node: Node) -> torch.utils.hooks.RemovableHandle:
        caught = self._caught
        return node.register_prehook(lambda gradients: caught.__setitem__(node, gradients))

    def weights(self) -> None:
        """See `NaiveHalves`: a step along each side edge, then all that is behind them at once."""
        for leave in self._exits:
            arrived = [
                (GradientEdge(leave.node, number), gradient)
                for number, gradient in enumerate(self._caught.get(leave.node, ()))
                if gradient is not None
            ]
            if arrived:
                edges, gradients = zip(*arrived, strict=True)
                found = _gradients(edges, gradients, leave.sides)
                for side, gradient in zip(leave.sides, found, strict=True):
                    if gradient is not None:
                        self.outputs.append(side)
                        self.gradients.append(gradient)
        self._exits = []
        self._caught.clear()  # hooks know it, and it knows their nodes
        super().weights()


# `torch.autograd.backward` and `grad`, which call this engine, import sympy to compare shapes of
# gradients that they are given: two seconds for a fresh rank. The engine compares them too.


def _accumulate(ends: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    """From the ends, whose gradients are given, to the `.grad` of all that they depend on."""
    if ends:
        Variable._execution_engine.run_backward(
            tuple(ends), tuple(gradients), False, False, (),
            allow_unreachable=True, accumulate_grad=True,
        )  # fmt: skip


def _gradients(
    ends: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    wanted: Sequence[Tensor | GradientEdge],
    keep_graph: bool = False,
) -> Gradients:
    """The gradients of what is wanted, None where an end does not depend on it."""
    found: Gradients = Variable._execution_engine.run_backward(
        tuple(ends), tuple(gradients), keep_graph, False, tuple(wanted),
        allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    return found


class _Exit(NamedTuple):
    """A node on the path, and the edges that leave the path there."""

    node: Node
    sides: list[GradientEdge]


class _Path:
    """The part of a graph that leads from the roots to the goals; `leads` says so of each node."""

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
            if is_through:  # all that it leads to is known
                self.leads[node] = any(self.leads[follower] for follower in followers)
                continue
            self.leads[node] = False
            self._parents.update(followers)
            stack.append((node, True))
            stack += [(follower, False) for follower in followers]

    def exits(self) -> list[_Exit]:
        """Where weights join the path."""
        found = []
        for node, leads in self.leads.items():
            if not leads or node in self._goals:
                continue
            edges = dict.fromkeys(
                GradientEdge(follower, number)
                for follower, number in node.next_functions
                if follower is not None and not self.leads[follower]
            )
            if edges:
                found.append(_Exit(node, list(edges)))
        return found

    def is_simple(self) -> bool:
        """Whether each side edge is the only way to where it leads."""
        sides = (side.node for leave in self.exits() for side in leave.sides)
        return all(self._parents[side] == 1 for side in sides)
