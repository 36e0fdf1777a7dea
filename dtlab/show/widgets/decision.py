"""The widget for the decision tree.

    explore_decision()    the path through the tree for the facts about a job

Numbers of parameters are typed as `7 billion`, times as `19 days` or `2 hours`.
"""

from __future__ import annotations

from typing import Any, Final

from dtlab.predict.hardware import CARDS
from dtlab.predict.strategy import choose
from dtlab.predict.units import four_digits
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.memory import count_words
from dtlab.show.figures.strategy import decision_tree
from dtlab.show.widgets.dials import Dial, Scale, bytes_scale, count_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_decision"]

_COUNTS: Final = {"trillion": 1e12, "billion": 1e9, "million": 1e6, "thousand": 1e3}
_PARAMS: Final = (
    1e6, 1e7, 25e6, 1e8, 2e8, 4e8, 1e9, 1.5e9, 3e9, 5e9, 6e9, 7e9, 13e9, 20e9, 30e9, 40e9, 70e9,
    100e9, 175e9, 300e9, 500e9, 1e12,
)  # fmt: skip
_GPUS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_BUDGETS: Final = (8e9, 16e9, 24e9, 40e9, 48e9, 80e9, 141e9, 180e9, 288e9)
_ACTIVATIONS: Final = (0.0, 1e8, 5e8, 1e9, 2e9, 5e9, 1e10, 2e10, 4e10, 7e10, 1e11, 3e11, 7e11)
_TIMES: Final = {"hours": 1.0, "hour": 1.0, "days": 24.0, "day": 24.0}
_HOURS: Final = (1.0, 2.0, 6.0, 12.0, 24.0, 48.0, 120.0, 168.0, 456.0, 720.0, 2160.0, 8760.0)
_TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_BLOCKS: Final = (4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128)
_CARD: Final = "H100 SXM"


def explore_decision() -> Explorer:
    """Change the facts about a job, and see which path through the tree is highlighted.

    A node has eight GPUs. Tokens per GPU are compared with the compute and the links of an H100.
    See `decision_tree`.
    """
    hours = Scale(_HOURS, _hours_words, lambda words: number_from_words(words, _TIMES))
    dials = {
        "num_params": Dial("Parameters", Scale(_PARAMS, count_words, _read_count), 40e9),
        "budget_bytes": Dial("Budget of a GPU", bytes_scale(_BUDGETS), 80e9),
        "activation_bytes": Dial("Activations", bytes_scale(_ACTIVATIONS), 2e9),
        "num_gpus": Dial("Number of GPUs", count_scale(_GPUS), 16),
        "hours": Dial("Time on one GPU", hours, 168.0),
        "deadline_hours": Dial("Time available", hours, 24.0),
        "num_blocks": Dial("Blocks", count_scale(_BLOCKS), 48),
        "tokens_per_gpu": Dial("Tokens per GPU", count_scale(_TOKENS), 32768),
    }

    def draw(num_params: float, budget_bytes: float, **facts: Any) -> Figure:
        return decision_tree(choose(num_params, budget_bytes, card=CARDS[_CARD], **facts))

    return Explorer(draw, dials, [[each.widget for each in dials.values()]])


def _read_count(words: str) -> float:
    return round(number_from_words(words, _COUNTS))


def _hours_words(hours: float) -> str:
    """Format hours: `456` as `19 days`; times under two days in hours."""
    days = hours >= 48
    number = four_digits(hours / 24 if days else hours)
    unit = "day" if days else "hour"
    return f"{number} {unit}{'' if number == '1' else 's'}"
