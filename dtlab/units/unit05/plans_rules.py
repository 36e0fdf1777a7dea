"""The rules of 05/plans as arithmetic: what a plan needs, what it sends, which plans are allowed.

    bytes on a rank = model states + whole blocks + activations + reserve     <= those of the card
    blocks            stage 2: gradients of one, until they are reduced
                      stage 3: the same, and weights of two: one computes, one is prefetched
    activations       of all layers as they are kept, of one as if nothing were recomputed

A model has layers of 12h^2 + 13h parameters, a block each; embeddings are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Final, NamedTuple

from dtlab.grading.words import count_ranks
from dtlab.predict.activations import Recompute, activation_bytes
from dtlab.predict.memory import POLICIES, model_states
from dtlab.predict.traffic import zero_traffic

__all__ = ["DEMANDS", "RECOMPUTE", "Model", "Plan", "Row", "model_of"]

RECOMPUTE: Final[tuple[Recompute, ...]] = (
    "none",
    "selective",
    "full",
)  # by how much is computed twice
DEMANDS: Final = {
    "master": ("mixed", "mixed_fp32_grads", "fp32"),
    "gradients": ("mixed_fp32_grads", "fp32"),
}
"""Policies that have the weights in fp32 too, and those that have the gradients so as well."""


class Plan(NamedTuple):
    """How a model is trained: ZeRO's stage, ranks, the precision policy, what is recomputed."""

    stage: int
    ranks: int
    policy: str
    recompute: str


class Row(NamedTuple):
    """A plan that is allowed: bytes that a rank sends in a step, and that it needs, by kind."""

    plan: Plan
    sent: float
    needs: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes on a rank."""
        return sum(self.needs.values())

    @property
    def twice(self) -> int:
        """How much is computed twice: 0 is nothing."""
        return RECOMPUTE.index(self.plan.recompute)


@dataclass(frozen=True)
class Model:
    """A transformer, the step that is asked for, and the cluster; sizes in bytes."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    microbatch: int
    batch: int  # sequences in a step, over all ranks and microbatches
    nodes: int
    gpus_per_node: int
    least_ranks: int
    card: int
    reserve: int
    demand: str

    @property
    def block(self) -> int:
        """Parameters of a layer."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return self.layers * self.block

    @property
    def given(self) -> dict[str, Any]:
        """As the learner gets it."""
        return {"parameters": self.parameters, "block": self.block} | asdict(self)

    def ranks(self) -> list[int]:
        """The numbers of ranks that are allowed."""
        shares = self.batch // self.microbatch
        every = range(self.least_ranks, self.nodes * self.gpus_per_node + 1)
        divisors = (ranks for ranks in every if shares % ranks == 0)
        return [ranks for ranks in divisors if not self.objection_to_ranks(ranks)]

    def objection_to_ranks(self, ranks: int) -> str:
        """Why a number of ranks is not allowed; empty if it is."""
        node, most = self.gpus_per_node, self.nodes * self.gpus_per_node
        if not self.least_ranks <= ranks <= most:
            return f"{count_ranks(ranks)}, where {self.least_ranks} to {most} are allowed"
        if ranks % node:
            return f"{count_ranks(ranks)} would not fill whole nodes of {node}"
        if self.batch % (ranks * self.microbatch):
            return (
                f"{ranks} ranks with microbatches of {self.microbatch} do not divide a batch of "
                f"{self.batch}"
            )
        return ""

    def objection(self, plan: Plan) -> str:
        """Why a plan is not allowed; empty if it is."""
        if plan.stage not in range(4):
            return f"there is no stage {plan.stage}, only 0 to 3"
        if plan.policy not in DEMANDS[self.demand]:
            return f"policy {plan.policy!r} has not what the model demands"
        return self.objection_to_ranks(plan.ranks)

    def row(self, plan: Plan) -> Row:
        """What an allowed plan sends and needs."""
        return next(row for row in self.alike(plan) if row.plan == plan)

    def alike(self, plan: Plan) -> Iterator[Row]:
        """The same for plans that differ from it in what they recompute."""
        policy = POLICIES[plan.policy]
        count = self.batch // (plan.ranks * self.microbatch)
        traffic = zero_traffic(self.parameters, plan.stage, plan.ranks, count)
        sent = traffic.nbytes(policy.weights, policy.gradients)
        states = model_states(self.parameters, plan.stage, plan.ranks, policy)
        whole = policy.gradients * (plan.stage >= 2) + 2 * policy.weights * (plan.stage == 3)
        for recompute, activations in self.activations.items():
            needs = {
                "states": math.ceil(states.total),
                "blocks": math.ceil(whole * self.block),
                "activations": activations,
                "reserve": self.reserve,
            }
            yield Row(plan._replace(recompute=recompute), sent, needs)

    @cached_property
    def activations(self) -> dict[str, int]:
        """Bytes while backward is at the last layer, which is there in full."""
        one = {
            how: activation_bytes(
                self.sequence, self.microbatch, self.hidden, self.heads,
                recompute=how, dropout=False,
            )
            for how in RECOMPUTE
        }  # fmt: skip
        return {how: (self.layers - 1) * kept + one["none"] for how, kept in one.items()}

    @cached_property
    def _sorted(self) -> list[Row]:
        plans = (
            Plan(stage, ranks, policy, RECOMPUTE[0])
            for stage in range(4)
            for ranks in self.ranks()
            for policy in DEMANDS[self.demand]
        )
        rows = (row for plan in plans for row in self.alike(plan))
        return sorted(rows, key=lambda row: (row.sent, row.twice))

    def rows(self) -> list[Row]:
        """All allowed plans, those that send least first, and of these what computes least."""
        return self._sorted

    def best(self) -> Row | None:
        """The first of them that fits; None where none does."""
        return next((row for row in self.rows() if row.total <= self.card), None)


def model_of(given: Mapping[str, Any]) -> Model:
    """The model of what a learner got."""
    return Model(**{field.name: given[field.name] for field in fields(Model)})
