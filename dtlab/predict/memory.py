"""Model states: the bytes of parameters, gradients and optimizer state on each rank.

    4 ranks, mixed precision         parameters  gradients  optimizer   bytes per parameter
    stage 0   every rank has all         2           2          12            16
    stage 1   optimizer sharded          2           2           3             7
    stage 2   gradients too              2         0.5           3           5.5
    stage 3   parameters too           0.5         0.5           3             4

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
Not included: activations, the block that stage 3 gathers, buffers, the CUDA context. The bytes per
parameter depend on the precision policy, so each policy has a name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from dtlab.predict.communication import Traffic, check_stage, zero_traffic
from dtlab.predict.transformer import (
    activation_bytes,
    activation_pieces,
    first_stage_activation_bytes,
    gpt_flops,
    gpt_parameters,
)
from dtlab.predict.units import check_bytes, check_count, check_whole, in_gb, in_gib

__all__ = [
    "POLICIES",
    "ModelStates",
    "PrecisionPolicy",
    "Traffic",
    "activation_bytes",
    "activation_pieces",
    "first_stage_activation_bytes",
    "floor_bytes",
    "gpt_flops",
    "gpt_parameters",
    "in_gb",
    "in_gib",
    "model_states",
    "precision_policy",
    "smallest_world_size",
    "zero_traffic",
]

# ----------------------------------------------------------------------------- bytes per parameter


@dataclass(frozen=True)
class PrecisionPolicy:
    """Bytes that training holds for each parameter, by purpose.

    `master` is an fp32 copy of 16-bit weights that the optimizer steps, so it counts as optimizer
    state; `moments` are Adam's two moments. `accumulation` is a buffer that accumulates 16-bit
    gradients in fp32. This buffer counts as gradients, because it can be sharded only if each
    microbatch's gradients are reduced to their owners, as at ZeRO stage 2.

    Raises: ValueError for bytes below 0, or weights of 0 bytes.
    """

    name: str
    weights: float
    gradients: float
    master: float = 0
    moments: float = 8
    accumulation: float = 0
    source: str = ""

    def __post_init__(self) -> None:
        for field in fields(self)[1:-1]:
            check_bytes(f"{field.name} of policy {self.name!r}", getattr(self, field.name))
        if self.weights == 0:
            raise ValueError(f"weights of policy {self.name!r} must have more than 0 bytes.")

    @property
    def parts(self) -> tuple[float, float, float]:
        """Bytes per parameter in the parts that ZeRO shards: parameters, gradients, optimizer."""
        return self.weights, self.gradients + self.accumulation, self.master + self.moments

    @property
    def total(self) -> float:
        """All bytes per parameter."""
        return sum(self.parts)


_PRESETS = (
    PrecisionPolicy("fp32", 4, 4, source="arithmetic: four tensors of fp32"),
    PrecisionPolicy("mixed", 2, 2, master=4, source="ZeRO, section 3.1: K = 12"),
    PrecisionPolicy(
        "mixed_fp32_grads", 2, 4, master=4,
        source="Bekman, Machine Learning Engineering (which counts the master copy among the "
        "weights); EleutherAI's cookbook",
    ),
    PrecisionPolicy(
        "mixed_fp32_accumulation", 2, 2, master=4, accumulation=4,
        source="Nanotron: Tazi et al. 2025, The Ultra-Scale Playbook",
    ),
    PrecisionPolicy(
        "half_only", 2, 2, moments=4,
        source="seen in teaching texts; without a master copy small steps are lost",
    ),
)  # fmt: skip
POLICIES: Final[Mapping[str, PrecisionPolicy]] = MappingProxyType(
    {policy.name: policy for policy in _PRESETS}
)


def precision_policy(policy: str | PrecisionPolicy) -> PrecisionPolicy:
    """Return the policy of that name; a policy is returned unchanged.

    Raises: ValueError for a name that is not in `POLICIES`.
    """
    if isinstance(policy, PrecisionPolicy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        names = ", ".join(POLICIES)
        raise ValueError(f"policy must be one of {names}, or a PrecisionPolicy, not {policy!r}.")
    return POLICIES[policy]


# ----------------------------------------------------------------------------- bytes on each rank


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank. `total` is rounded once, from the exact sum."""

    parameters: float
    gradients: float
    optimizer: float
    total: float


def model_states(
    num_params: float, stage: int, world_size: int, policy: str | PrecisionPolicy
) -> ModelStates:
    """Return the bytes of model states per rank, at ZeRO stage 0 (no sharding) to 3.

    A shard is an exact N-th part. A real shard is padded, by less than one element per parameter
    group or block and rank. `num_params` is a whole number, and may be written as 7e9.
    Rajbhandari et al. 2020, section 5, and Figure 1.
    Raises: ValueError for an invalid stage, count or policy.
    """
    params = check_whole("num_params", num_params)
    parts, ranks = precision_policy(policy).parts, check_count("world_size", world_size)
    shards = [ranks if sharded else 1 for sharded in _sharded_parts(stage)]
    whole = sum(part * (ranks // among) for part, among in zip(parts, shards, strict=True))
    parameters, gradients, optimizer = (
        part * params / among for part, among in zip(parts, shards, strict=True)
    )
    return ModelStates(parameters, gradients, optimizer, total=whole * params / ranks)


def floor_bytes(num_params: float, stage: int, policy: str | PrecisionPolicy) -> float:
    """Return the bytes of model states that each rank keeps for any number of ranks.

    Raises: ValueError as `model_states` does.
    """
    whole, _ = _whole_and_sharded(stage, policy)
    return whole * check_whole("num_params", num_params)


def smallest_world_size(
    num_params: float,
    stage: int,
    budget_bytes: float,
    policy: str | PrecisionPolicy,
    *,
    activation_bytes: float = 0,
) -> int | None:
    """Return the fewest ranks on which model states and `activation_bytes` fit in the budget.

    They may fill the budget exactly. Returns None if no number of ranks is enough: then the states
    that are not sharded, `floor_bytes`, and the activations leave no space for shards.
    Raises: ValueError as `model_states` does, and for a budget or activations below 0.
    """
    params = check_whole("num_params", num_params)
    budget = Fraction(check_bytes("budget_bytes", budget_bytes))
    whole, sharded = (Fraction(each) * params for each in _whole_and_sharded(stage, policy))
    free = budget - Fraction(check_bytes("activation_bytes", activation_bytes)) - whole
    if sharded == 0:
        return 1 if free >= 0 else None
    return math.ceil(sharded / free) if free > 0 else None


def _sharded_parts(stage: int) -> tuple[bool, bool, bool]:
    """Return whether parameters, gradients and optimizer state are sharded."""
    stage = check_stage(stage)
    return stage >= 3, stage >= 2, stage >= 1


def _whole_and_sharded(stage: int, policy: str | PrecisionPolicy) -> tuple[float, float]:
    """Return the bytes per parameter that every rank has, and those that the ranks divide."""
    parts, sharded = precision_policy(policy).parts, _sharded_parts(stage)
    among = sum(part for part, shared in zip(parts, sharded, strict=True) if shared)
    return sum(parts) - among, among
