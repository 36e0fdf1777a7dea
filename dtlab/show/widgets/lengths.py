"""Widget for long sequences.

explore_lengths()    tokens, ranks and heads against memory and messages of attention
"""

from __future__ import annotations

from typing import Final

from dtlab.show.drawing.style import Figure
from dtlab.show.figures.splits import length_bars
from dtlab.show.widgets.dials import Dial, choice, count_scale
from dtlab.show.widgets.explorer import Explorer

__all__ = ["explore_lengths"]

_POWERS: Final = tuple(2**power for power in range(21))


def explore_lengths(
    tokens: int = 131072, ranks: int = 8, heads: int = 32, kv_heads: int = 8
) -> Explorer:
    """Compare what four ways to split attention store and send. See `length_bars`.

    All controls stop at powers of 2. The arguments are starting values.
    """
    dials = {
        "tokens": Dial("Tokens", count_scale(_POWERS[10:]), tokens),
        "ranks": Dial("Ranks", count_scale(_POWERS[:8]), ranks),
    }
    choices = {
        "heads": choice("Heads", [str(count) for count in _POWERS[3:8]]),
        "kv_heads": choice("KV heads", [str(count) for count in _POWERS[:4]]),
    }
    choices["heads"].value, choices["kv_heads"].value = str(heads), str(kv_heads)

    def draw(tokens: int, ranks: int, heads: str, kv_heads: str) -> Figure:
        return length_bars(tokens, ranks, int(heads), int(kv_heads))

    rows = [each.widget for each in dials.values()], list(choices.values())
    return Explorer(draw, dials | choices, rows)
