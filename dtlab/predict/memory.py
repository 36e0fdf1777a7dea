"""Model states: the bytes of parameters, gradients and optimizer state on each rank.

    4 ranks, mixed precision         parameters  gradients  optimizer   bytes per parameter
    stage 0   every rank has all         2           2          12            16
    stage 1   optimizer sharded          2           2           3             7
    stage 2   gradients too              2         0.5           3           5.5
    stage 3   parameters too           0.5         0.5           3             4

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
Not in it: activations, the block that stage 3 gathers, buffers, the CUDA context. What a number of
parameters times a number of bytes means depends on the policy, so a policy has a name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from dtlab.predict.activations import (
    activation_bytes,
    activation_pieces,
    first_stage_activation_bytes,
)
from dtlab.predict.communication import Traffic, check_stage, zero_traffic
from dtlab.predict.gpt import gpt_flops, gpt_parameters
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
    """Bytes that training holds for each parameter, by what they are for.

    `master` is a copy of 16-bit weights in fp32 that the optimizer steps on, so it counts as
    optimizer state; `moments` are Adam's two. `accumulation` is a buffer that adds up 16-bit
    gradients in fp32. It counts as gradients: like these it takes in what every microbatch gives
    for every parameter, and a rank may keep a shard of it only once each microbatch's gradients
    are reduced to their owners, which is stage 2.

    Raises: ValueError for bytes below 0, or weights of no bytes.
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
            raise ValueError(f"weights of policy {self.name!r} have bytes above 0, not 0.")

    @property
    def parts(self) -> tuple[float, float, float]:
        """Bytes per parameter as the stages shard them: parameters, gradients, optimizer."""
        return self.weights, self.gradients + self.accumulation, self.master + self.moments

    @property
    def total(self) -> float:
        """Bytes per parameter, all together."""
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
    """The policy of that name; a policy is returned as it is.

    Raises: ValueError for a name that is not in `POLICIES`.
    """
    if isinstance(policy, PrecisionPolicy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        names = ", ".join(POLICIES)
        raise ValueError(f"policy is one of {names}, or a PrecisionPolicy, not {policy!r}.")
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
    """Bytes of model states on each of `world_size` ranks, at stage 0 (no sharding) to 3 of ZeRO.

    A shard is an exact N-th part: a real one is padded, by less than one element per parameter
    group or block and rank. `num_params` is a whole number, and may be written as 7e9.
    Rajbhandari et al. 2020, section 5, and Figure 1.
    Raises: ValueError for a stage, a count or a policy that there is not.
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
    """Bytes of model states that stay on each rank, however many ranks there are.

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
    """The fewest ranks on which model states and `activation_bytes` fit in each one's budget.

    A budget that is exactly full fits. None where no number of ranks is enough: then what is not
    sharded, `floor_bytes`, and the activations leave nothing for the shards.
    Raises: ValueError as `model_states` does, and for a budget or activations below 0.
    """
    params = check_whole("num_params", num_params)
    budget = Fraction(check_bytes("budget_bytes", budget_bytes))
    whole, sharded = (Fraction(each) * params for each in _whole_and_sharded(stage, policy))
    room = budget - Fraction(check_bytes("activation_bytes", activation_bytes)) - whole
    if sharded == 0:
        return 1 if room >= 0 else None
    return math.ceil(sharded / room) if room > 0 else None


def _sharded_parts(stage: int) -> tuple[bool, bool, bool]:
    """Whether parameters, gradients and optimizer state are sharded."""
    stage = check_stage(stage)
    return stage >= 3, stage >= 2, stage >= 1


def _whole_and_sharded(stage: int, policy: str | PrecisionPolicy) -> tuple[float, float]:
    """Bytes per parameter that every rank has, and that the ranks share out."""
    parts, sharded = precision_policy(policy).parts, _sharded_parts(stage)
    among = sum(part for part, shared in zip(parts, sharded, strict=True) if shared)
    return sum(parts) - among, among
