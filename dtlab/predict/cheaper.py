"""What to try before more GPUs: measures, each with the most bytes that it brings on one card."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dtlab.predict.cards import CARDS
from dtlab.predict.memory import POLICIES, PrecisionPolicy
from dtlab.predict.units import in_gb

__all__ = ["Cheaper", "cheaper_measures"]

_LORA_PERCENT = 1  # parameters that it trains, of all
_PERCENT_FOR_TENSORS = 90  # of a card; context, buffers and gaps between blocks take the rest


@dataclass(frozen=True)
class Cheaper:
    """A measure; `brings` is in bytes and an upper bound. `enough`: with it alone, it may fit."""

    name: str
    how: str
    brings: float
    enough: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.how} Brings up to {in_gb(self.brings)}" + (
            ", which may be enough." if self.enough else "."
        )


def cheaper_measures(
    num_params: int,
    budget_bytes: float,
    activation_bytes: float,
    policy: PrecisionPolicy,
    microbatch_size: int,
    num_blocks: int,
) -> tuple[Cheaper, ...]:
    """The measures that bring something, in the order in which to try them."""
    replica = policy.total * num_params + activation_bytes
    offers = [
        *_smaller_activations(activation_bytes, microbatch_size, num_blocks),
        *_smaller_states(num_params, policy, activation_bytes),
        _bigger_card(replica, budget_bytes),
    ]
    return tuple(
        Cheaper(name, how, brings, replica - brings <= budget_bytes)
        for name, how, brings in offers
        if brings > 0
    )


def _smaller_activations(
    activation_bytes: float, microbatch_size: int, num_blocks: int
) -> Iterator[tuple[str, str, float]]:
    yield (
        "gradient accumulation",
        "Microbatches of one sample, as many as make up the batch.",
        activation_bytes * (1 - 1 / microbatch_size),
    )
    # Chen et al. 2016: of L blocks every sqrt(L)-th is kept, and sqrt(L) are recomputed at a time.
    left = min(1, 2 / math.sqrt(num_blocks))
    yield (
        "activation checkpointing",
        f"Of {num_blocks} blocks one in {round(math.sqrt(num_blocks))} is kept, for one more "
        "forward pass.",
        activation_bytes * (1 - left),
    )


def _smaller_states(
    num_params: int, policy: PrecisionPolicy, activation_bytes: float
) -> Iterator[tuple[str, str, float]]:
    states = max(0, policy.total - POLICIES["mixed"].total) * num_params
    yield (
        "bf16",
        "Mixed precision halves activations at most, and leaves 16 bytes of state per parameter.",
        states + (activation_bytes / 2 if policy.weights > 2 else 0),
    )
    yield (  # Hu et al. 2021
        "LoRA",
        "If a trained model is to be tuned: weights stay as they are, and "
        f"{_LORA_PERCENT} % as many are trained.",
        (policy.total * (1 - _LORA_PERCENT / 100) - policy.weights) * num_params,
    )
    yield (  # Ren et al. 2021, ZeRO-Offload
        "offload",
        "The optimizer's state lies in the host's memory, and the step is taken there.",
        (policy.master + policy.moments) * num_params,
    )


def _bigger_card(replica: float, budget_bytes: float) -> tuple[str, str, float]:
    """The smallest known card that holds a replica, or the largest there is."""
    room = {card: card.memory * _PERCENT_FOR_TENSORS / 100 for card in CARDS.values()}
    cards = sorted(room, key=lambda card: card.memory)
    card = next((card for card in cards if room[card] >= replica), cards[-1])
    how = f"{card}, of which {_PERCENT_FOR_TENSORS} % are counted as free for tensors."
    return "a bigger card", how, room[card] - budget_bytes
