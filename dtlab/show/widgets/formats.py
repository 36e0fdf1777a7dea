"""Widgets for number formats and activations.

explore_number_line()           what a value is rounded to in each format
explore_gradients(gradients)    what fp16 loses at each loss scale
explore_activations()           bytes of a layer by sizes and switches
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from dtlab.show.drawing.style import Figure
from dtlab.show.figures.formats import gradient_ranges, number_line
from dtlab.show.figures.layer import activation_bars
from dtlab.show.widgets.dials import Dial, Scale, box, choice, count_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_activations", "explore_gradients", "explore_number_line"]

_POWERS: Final = tuple(2**power for power in range(17))
_VALUES: Final = (2.0**-30, 1e-8, 1e-6, 1e-4, 0.001, 0.1, 1.0, 1.001, 1.003, 1.1, 2.5, 3.14159,
                  100.0, 2049.0, 10_001.0, 65_504.0, 70_000.0, 1e10, 1e30)  # fmt: skip


def explore_number_line() -> Explorer:
    """Change a value and see what each format rounds it to. See `number_line`."""
    values = Scale(_VALUES, lambda each: f"{each:.9g}", lambda words: number_from_words(words, {}))
    dial = Dial("Value", values, 1.003)
    return Explorer(number_line, {"value": dial}, [[dial.widget]])


def explore_gradients(gradients: Iterable[Any]) -> Explorer:
    """Scale gradients and see how many fp16 and bf16 can represent. See `gradient_ranges`."""
    tensors = list(gradients)
    exponents = Scale(range(-8, 33), lambda each: f"2^{each}", _exponent_from)
    dials = {"exponent": Dial("Scale of the loss", exponents, 0)}
    name = choice("Format", ["fp16", "bf16", "fp8 e5m2"])

    def draw(exponent: int, name: str) -> Figure:
        return gradient_ranges(
            tensors, 2.0**exponent, name, beside=tuple(dict.fromkeys((name, "bf16")))
        )

    return Explorer(draw, dials | {"name": name}, [[dials["exponent"].widget], [name]])


def explore_activations() -> Explorer:
    """Set sizes and switches of a transformer layer, and see the bytes of its activations.

    See `activation_bars`.
    """
    dials = {
        "sequence_length": Dial("Tokens of a sequence", count_scale(_POWERS), 1024),
        "microbatch_size": Dial("Microbatch size", count_scale(_POWERS[:8]), 4),
        "hidden_size": Dial("Hidden size", count_scale(_POWERS[7:]), 2048),
        "num_heads": Dial("Attention heads", count_scale(_POWERS[:8]), 16),
    }
    switches = {"dropout": box("Dropout"), "fused_attention": box("Fused attention", False)}
    recompute = choice("Recompute", ["none", "selective", "full"])
    rows = [each.widget for each in dials.values()], [*switches.values(), recompute]
    return Explorer(activation_bars, dials | switches | {"recompute": recompute}, rows)


def _exponent_from(words: str) -> int:
    """Parse `2^12`, `4096` and `12` as 12: a number up to 32 is taken as the exponent."""
    number = number_from_words(words.strip().removeprefix("2^"), {})
    exponent = math.log2(number) if number > 32 else number
    if not float(exponent).is_integer():
        raise ValueError(f"{words.strip()!r} is not a power of two. Type one, such as 2^12.")
    return int(exponent)
