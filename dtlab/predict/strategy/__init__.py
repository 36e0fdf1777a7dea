"""`choose`: computes the numbers of a training job and follows the decision tree.

print(choose(40e9, 80e9, activation_bytes=2e9, num_gpus=16))

The tree itself is data, in `decision.py`. It never recommends a strategy that does not fit in a
GPU's budget. If a whole replica fits, the recommended strategy shards nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dtlab.predict.hardware import CARDS, Card
from dtlab.predict.memory import (
    POLICIES,
    PrecisionPolicy,
    model_states,
    precision_policy,
    smallest_world_size,
)
from dtlab.predict.strategy.decision import Leaf, Step, tree_words, walk
from dtlab.predict.units import check_bytes, check_count, check_whole, in_gb, is_number

__all__ = ["PATIENCE_HOURS", "Cheaper", "Choice", "cheaper_measures", "choose", "tree_words"]

PATIENCE_HOURS: Final = 24.0  # the time limit if no deadline is given


@dataclass(frozen=True)
class Choice:
    """A strategy, the path to it through the tree, and what to try first.

    `facts` are the numbers that the tree compares. `bytes_per_gpu` is what each GPU then holds, or
    None if no strategy fits. `gpus_to_fit` is the fewest GPUs on which ZeRO stage 3 fits, or None
    if no number fits. `efficiency` is the parallel efficiency that the deadline requires of the
    available GPUs, or None without a deadline.
    """

    leaf: Leaf
    path: tuple[Step, ...]
    facts: Mapping[str, float]
    cheaper: tuple[Cheaper, ...]
    gpus_to_fit: int | None
    efficiency: float | None

    @property
    def strategy(self) -> str:
        """The recommended strategy."""
        return self.leaf.strategy

    @property
    def because(self) -> Step:
        """The fact that decided, with its number; if it is unknown, the last known fact."""
        decided = [step.question.id for step in self.path].index(self.leaf.because)
        return [step for step in self.path[: decided + 1] if step.known][-1]

    @property
    def bytes_per_gpu(self) -> float | None:
        """Bytes that each GPU holds, or None if no strategy fits."""
        return None if self.leaf.needs is None else self.facts[self.leaf.needs]

    @property
    def tree(self) -> str:
        """The decision tree as text, with the path through it."""
        return tree_words(self.path)

    def __str__(self) -> str:
        held = "" if self.bytes_per_gpu is None else f" ({in_gb(self.bytes_per_gpu)} on each GPU)"
        first = [f"  {measure}" for measure in self.cheaper]
        return "\n".join(
            [
                f"{self.strategy}{held}",
                f"Because {self.because}.",
                self.leaf.why,
                *(["Cheaper, so try these first:", *first] if first else []),
            ]
        )


def choose(
    num_params: float,
    budget_bytes: float,
    activation_bytes: float = 0,
    *,
    policy: str | PrecisionPolicy = "mixed",
    num_gpus: int = 8,
    gpus_per_node: int = 8,
    hours: float | None = None,
    deadline_hours: float | None = None,
    microbatch_size: int = 1,
    num_blocks: int | None = None,
    block_params: float = 0,
    tokens_per_gpu: float | None = None,
    card: Card | None = None,
) -> Choice:
    """Return the strategy for a training job, the fact that decided, and what to try first.

    `budget_bytes` is the memory for tensors on one GPU. `activation_bytes` is saved on one GPU for
    the smallest useful microbatch, of `microbatch_size` samples. `hours` is the time of the job on
    one GPU. If a replica fits, `hours` is compared with `deadline_hours`, or a day; unknown hours
    count as fast enough. `num_blocks` equal blocks may be recomputed, or be the stages of a
    pipeline; None if their number is unknown. A block has `block_params`; ZeRO stage 3 gathers two
    blocks at a time, and computes whole gradients of one block. `tokens_per_gpu` in each step and
    the `card` determine whether compute hides the traffic of ZeRO stage 3. Raises: ValueError for
    invalid numbers.
    """
    scheme, params = precision_policy(policy), check_whole("num_params", num_params)
    for name, value in (("budget_bytes", budget_bytes), ("activation_bytes", activation_bytes)):
        check_bytes(name, value)
    block = check_whole("block_params", block_params) if block_params else 0
    ranks, node = check_count("num_gpus", num_gpus), check_count("gpus_per_node", gpus_per_node)
    blocks = None if num_blocks is None else check_count("num_blocks", num_blocks)
    facts = {"budget_bytes": budget_bytes, "activation_bytes": activation_bytes, "num_gpus": ranks,
             "num_blocks": math.nan if blocks is None else blocks}  # fmt: skip
    facts |= _byte_facts(params, activation_bytes, scheme, ranks, node, block)
    facts |= _time_facts(hours, deadline_hours)
    facts |= _token_facts(tokens_per_gpu, card, scheme, ranks, node)
    path, leaf = walk(facts)
    cheaper = cheaper_measures(
        params, budget_bytes, activation_bytes, scheme,
        check_count("microbatch_size", microbatch_size), blocks,
    )  # fmt: skip
    if leaf.needs == "replica_bytes":  # memory suffices; bf16 is also faster
        late = leaf.id != "one_gpu"
        cheaper = tuple(measure for measure in cheaper if late and measure.name == "bf16")
    needed = None if hours is None or deadline_hours is None else hours / deadline_hours
    return Choice(
        leaf, path, MappingProxyType(facts), cheaper,
        smallest_world_size(params, 3, budget_bytes, scheme, activation_bytes=activation_bytes),
        None if needed is None else needed / ranks,
    )  # fmt: skip


def _byte_facts(
    params: int, activations: float, policy: PrecisionPolicy, ranks: int, node: int, block: int
) -> dict[str, float]:
    """Return the bytes on each GPU, for every way to divide states and activations."""
    states = [model_states(params, stage, ranks, policy).total for stage in range(4)]
    gathered = block * (2 * policy.weights + policy.gradients)
    inside = ranks if ranks <= node else math.gcd(ranks, node)
    return {
        "replica_bytes": states[0] + activations,
        "stage1_bytes": states[1] + activations,
        "stage2_bytes": states[2] + activations,
        "stage3_bytes": states[3] + gathered + activations,
        "pipeline_bytes": states[3] + activations,  # 1F1B's first stage: one microbatch's worth
        "tensor_bytes": states[3] + (gathered + activations) / inside,
        "split_bytes": states[0] + activations / ranks,
        "split_stage3_bytes": states[3] + gathered + activations / ranks,
    }


def _time_facts(hours: float | None, deadline_hours: float | None) -> dict[str, float]:
    for name, value in (("hours", hours), ("deadline_hours", deadline_hours)):
        if value is not None and not (is_number(value) and 0 < value < math.inf):
            raise ValueError(f"{name} must be a time above 0, or None if there is none, "
                             f"not {value!r}.")  # fmt: skip
    limit = deadline_hours or PATIENCE_HOURS
    in_time = 2 if deadline_hours is None or hours is None else math.ceil(hours / limit)
    return {"hours": hours or math.nan, "deadline_hours": limit, "gpus_in_time": in_time}


def _token_facts(
    tokens_per_gpu: float | None, card: Card | None, policy: PrecisionPolicy, ranks: int, node: int
) -> dict[str, float]:
    """Return the tokens that take as long as the traffic of ZeRO stage 3 on its slowest link.

    With Psi parameters a token takes 6 Psi operations. The traffic is two passes of parameters and
    one of gradients. So the result does not depend on Psi. It assumes that kernels reach the
    GPU's peak; at half the peak, half as many tokens are enough.
    """
    if tokens_per_gpu is not None and not (is_number(tokens_per_gpu) and tokens_per_gpu > 0):
        raise ValueError(
            f"tokens_per_gpu must be a number above 0 or None, not {tokens_per_gpu!r}."
        )
    link = None if card is None else card.nvlink if ranks <= node else card.nic
    if tokens_per_gpu is None or card is None or card.bf16_flops is None or link is None:
        return {"break_even_tokens": math.nan, "tokens_per_gpu": tokens_per_gpu or math.nan}
    bytes_each = (2 * policy.weights + policy.gradients) * (ranks - 1) / ranks
    break_even = bytes_each / link * card.bf16_flops / 6
    return {"break_even_tokens": break_even, "tokens_per_gpu": tokens_per_gpu}


# What to try before more GPUs: measures, each with the most bytes that it saves on one GPU -------

_KEPT = 20  # what a transformer's block saves for backward, in sizes of its input: 34 to 36 / 2
_LORA_PERCENT = 1  # share of all parameters that LoRA trains
_PERCENT_FOR_TENSORS = 90  # of a GPU; context, buffers and gaps between blocks take the rest


@dataclass(frozen=True)
class Cheaper:
    """A measure that saves memory: at most `brings` bytes. `enough`: whether that may suffice."""

    name: str
    how: str
    brings: float
    enough: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.how} Gain: up to {in_gb(self.brings)}" + (
            ", which may be enough." if self.enough else "."
        )


def cheaper_measures(
    num_params: int,
    budget_bytes: float,
    activation_bytes: float,
    policy: PrecisionPolicy,
    microbatch_size: int,
    num_blocks: int | None,
) -> tuple[Cheaper, ...]:
    """Return the measures that save memory, in the order in which to try them."""
    replica = policy.total * num_params + activation_bytes
    offers = [
        *_smaller_activations(activation_bytes, microbatch_size, num_blocks),
        *_smaller_states(num_params, policy, activation_bytes),
        _bigger_gpu(replica, budget_bytes),
    ]
    return tuple(
        Cheaper(name, how, brings, replica - brings <= budget_bytes)
        for name, how, brings in offers
        if brings > 0
    )


def _smaller_activations(
    activation_bytes: float, microbatch_size: int, num_blocks: int | None
) -> Iterator[tuple[str, str, float]]:
    yield (
        "gradient accumulation",
        "Process microbatches of one sample, and add up their gradients over the batch.",
        activation_bytes * (1 - 1 / microbatch_size),
    )
    how, remaining = _checkpointed(num_blocks)
    yield (
        "activation checkpointing",
        f"{how} It costs one more forward pass.",
        activation_bytes * (1 - remaining),
    )


def _checkpointed(num_blocks: int | None) -> tuple[str, float]:
    """Return how to recompute n blocks, and the least share of their activations that remains.

    With an input saved for every k-th block, n/k inputs remain, and in backward all that k blocks
    save, each 20 inputs: n/k + 20k of 20n inputs. k = 1 is best below 40 blocks. Chen et al. 2016,
    for blocks of a transformer (unit 04).
    """
    if num_blocks is None:
        return "Save the input of each block only, and recompute the block in backward.", 1 / _KEPT
    n = num_blocks
    spacing = min(range(1, n + 1), key=lambda k: n / k + _KEPT * k)
    every = "each one" if spacing == 1 else f"one in {spacing}"
    how = f"With {n} blocks, save the input of {every}, and recompute the rest in backward."
    return how, min(1.0, (n / spacing + _KEPT * spacing) / (_KEPT * n))


def _smaller_states(
    num_params: int, policy: PrecisionPolicy, activation_bytes: float
) -> Iterator[tuple[str, str, float]]:
    states = max(0, policy.total - POLICIES["mixed"].total) * num_params
    yield (
        "bf16",
        "Mixed precision at most halves activations, and leaves 16 bytes of state per parameter.",
        states + (activation_bytes / 2 if policy.weights > 2 else 0),
    )
    yield (  # Hu et al. 2021
        "LoRA",
        "If you fine-tune a trained model, freeze its weights and train "
        f"{_LORA_PERCENT} % as many new ones.",
        (policy.total * (1 - _LORA_PERCENT / 100) - policy.weights) * num_params,
    )
    yield (  # Ren et al. 2021, ZeRO-Offload
        "offload",
        "Keep the optimizer state in host memory, and compute the step on the host.",
        (policy.master + policy.moments) * num_params,
    )


def _bigger_gpu(replica: float, budget_bytes: float) -> tuple[str, str, float]:
    """Return the smallest known GPU that holds a replica, or else the largest known one."""
    usable = {gpu: gpu.memory * _PERCENT_FOR_TENSORS / 100 for gpu in CARDS.values()}
    gpus = sorted(usable, key=lambda gpu: gpu.memory)
    gpu = next((gpu for gpu in gpus if usable[gpu] >= replica), gpus[-1])
    how = f"Use {gpu}, of which {_PERCENT_FOR_TENSORS} % count as free for tensors."
    return "a bigger GPU", how, usable[gpu] - budget_bytes
