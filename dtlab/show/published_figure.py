"""Draws a published sweep: ImageNet's error against the batch, and other rules at a batch of 8k.

The numbers are those of P. Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in
1 Hour": top-1 validation error of ResNet-50 after 90 epochs, in percent, each a mean of five runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart
from dtlab.show.style import Figure

__all__ = ["AT_8K", "IMAGENET", "published_sweep"]

IMAGENET: Final[Mapping[int, float]] = MappingProxyType(
    {
        128: 23.49,
        256: 23.60,
        512: 23.48,
        1024: 23.53,
        2048: 23.49,
        4096: 23.56,
        8192: 23.74,
        16384: 24.79,
        32768: 27.55,
        65536: 33.96,
    }
)  # batch: error, with the linear rule and a gradual warm-up over the first five epochs
AT_8K: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        "linear, gradual warm-up": ("0.1 x 32", 23.74),
        "linear, no warm-up": ("0.1 x 32", 24.84),
        "linear, constant warm-up": ("0.1 x 32", 25.88),
        "square root": ("0.1 x 5.7", 26.22),
        "not scaled": ("0.1", 41.67),
    }
)  # rule: its rate, and the error at a batch of 8192

_WIDTH, _HEIGHT = 9.4, 3.9
_LEFT, _TOP, _BOTTOM = 0.8, 0.95, 0.6
_CURVE: Final = "linear, gradual warm-up"
_SMALL, _LARGE = 256, 8192


def published_sweep(rule: str = _CURVE, *, title: str | None = None) -> Figure:
    """ImageNet's published error against the batch, and beside it that of another rule at 8192.

    `rule` is one of `AT_8K`. Raises ValueError for any other.
    """
    if rule not in AT_8K:
        raise ValueError(f"published_sweep: rule is one of {', '.join(AT_8K)}; not {rule!r}.")
    heading = title or "ResNet-50 on ImageNet: error against the batch"
    note = "published: Goyal et al. 2017, mean of five runs; the rate is 0.1 at a batch of 256"
    names = list(dict.fromkeys([_CURVE, rule]))
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - KEY, _HEIGHT - _TOP - _BOTTOM)
    ends = min(IMAGENET) / 1.3, max(IMAGENET) * 1.3
    across = Axis("batch", ends, True, _batch, tuple(IMAGENET))
    chart = Chart(figure, box, names, across, Axis("top-1 error", (20, 44), write=_percent))
    batches, errors = (np.array([*side], dtype=float) for side in (IMAGENET, IMAGENET.values()))
    chart.draw_curve(_CURVE, batches, errors, "measured")
    rate, error = AT_8K[rule]
    if rule != _CURVE:
        chart.draw_curve(rule, np.array([float(_LARGE)]), np.array([error]), "measured")
    chart.draw_upright(_LARGE, "8k")
    more = error - IMAGENET[_SMALL]
    here = f"at 8k: rate {rate}\nerror {error:.2f} %,\n{more:.2f} points more\nthan at 256"
    chart.draw_key({name: here if name == rule else "" for name in names})
    points = ", ".join(f"{error:.2f} at {_batch(batch)}" for batch, error in IMAGENET.items())
    figure.alt_text = (
        f"{heading} ({note}). Top-1 error in percent with the linear rule and gradual warm-up: "
        f"{points}. {rule.capitalize()}, {' '.join(here.split())}."
    )
    return figure


def _batch(value: float) -> str:
    return f"{value:g}" if value < 1024 else f"{value / 1024:g}k"


def _percent(value: float) -> str:
    return f"{value:g} %"
