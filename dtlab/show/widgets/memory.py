"""Widgets for memory.

explore_memory()    memory of a rank by parameters, ZeRO stage, ranks, policy and GPU
"""

from __future__ import annotations

from typing import Final

from dtlab.predict.hardware import CARDS, Card
from dtlab.predict.memory import POLICIES
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.memory import count_words, memory_bar, policy_words
from dtlab.show.widgets.dials import Dial, Scale, bytes_scale, choice, choose, count_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_memory"]

_COUNTS: Final = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12,
                  "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}  # fmt: skip
_DIGITS: Final = (1, 1.3, 1.75, 3, 7, 7.5)
_PARAMETERS: Final = [round(digit * 10**power) for power in range(6, 12) for digit in _DIGITS]
_RANKS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 4096)
_GIGABYTES: Final = (0, 1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 120)


def explore_memory(
    num_params: float = 7e9, stage: int = 1, world_size: int = 8, policy: str = "mixed"
) -> Explorer:
    """Find the fewest GPUs on which a model fits, by ZeRO stage and policy. See `memory_bar`.

    The GPUs are those of `CARDS`, and one with 80e9 bytes, which the exercises use. The bytes of
    activations are typed in, because ZeRO does not shard them. The arguments are starting values.
    """
    parameters = Scale(_PARAMETERS, count_words, _whole)
    dials = {
        "num_params": Dial("Parameters", parameters, int(num_params)),
        "world_size": Dial("Ranks", count_scale(_RANKS), world_size),
        "activation_bytes": Dial("Activations on a rank", bytes_scale(
            [each * 1e9 for each in _GIGABYTES]), 0),
    }  # fmt: skip
    choices = {
        "stage": choice("ZeRO stage", ["0", "1", "2", "3"]),
        "policy": choice("Precision", {policy_words(name): name for name in POLICIES}),
        "card": choice("GPU", {"80 GB, as in the exercises": "80e9 bytes"} | {
            name: name for name in CARDS}),
    }  # fmt: skip
    choose(choices["stage"], str(stage))
    choose(choices["policy"], policy)

    def draw(
        num_params: float, world_size: int, activation_bytes: float, stage: str, policy: str,
        card: str,
    ) -> Figure:  # fmt: skip
        budget: Card | float = CARDS.get(card, 80e9)
        return memory_bar(num_params, int(stage), world_size, policy, budget=budget,
                          activation_bytes=activation_bytes)  # fmt: skip

    rows = [each.widget for each in dials.values()], list(choices.values())
    return Explorer(draw, dials | choices, rows)


def _whole(words: str) -> int:
    """Parse `7 billion`, `7B` and `7e9` as 7000000000."""
    number = number_from_words(words, _COUNTS)
    if not number.is_integer():
        raise ValueError(f"{words.strip()!r} is not a whole number of parameters.")
    return int(number)
