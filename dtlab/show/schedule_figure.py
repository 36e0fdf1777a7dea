"""Draws a learning rate over the steps of a run: as it is meant, and as a mistake makes it."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart, Numbers
from dtlab.show.style import Figure

__all__ = ["schedule"]

_WIDTH, _HEIGHT = 9.4, 3.6
_LEFT, _TOP, _BOTTOM = 0.8, 0.95, 0.6
_MEANT: Final = "as meant"
_POINTS: Final = 400


def schedule(
    warmup: float = 0.25,
    times: float = 8.0,
    calls_per_step: int = 1,
    decay: Literal["cosine", "linear", "constant"] = "cosine",
    base_rate: float = 0.05,
    num_steps: int = 400,
    *,
    title: str | None = None,
) -> Figure:
    """The rate of `WarmupThenDecay` in each of `num_steps` optimizer steps, by the linear rule.

    The batch is `times` as large as that of `base_rate`: the full rate is so many times as large,
    and the warm-up, a share of the run from 0 to 1, starts at `base_rate`. With `calls_per_step`
    above 1 a second curve shows what becomes of it where `scheduler.step()` is called so often in
    each optimizer step, say once for every microbatch.
    Raises: ValueError for a share that is none, fewer than one call or step, or a batch that does
    not grow.
    """
    if not 0 <= warmup <= 1 or times < 1 or calls_per_step < 1 or num_steps < 1:
        raise ValueError(
            f"schedule: a warm-up from 0 to 1, at least 1 times the batch, one call and one step; "
            f"not {warmup}, {times}, {calls_per_step} and {num_steps}."
        )
    warm, steps = round(warmup * num_steps), np.linspace(0, num_steps, _POINTS + 1)
    heading = title or f"The learning rate in a run of {num_steps} steps"
    start = "no warm-up" if warm == 0 else f"{warm} steps of warm-up from {base_rate:.3g}"
    note = f"predicted: {start}, full rate {base_rate * times:.3g}, then {decay}"
    curves = {_MEANT: 1}
    if calls_per_step > 1:
        curves[f"{calls_per_step} calls in a step"] = calls_per_step
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - KEY, _HEIGHT - _TOP - _BOTTOM)
    upwards = Axis("learning rate", (0, 1.08 * base_rate * times))
    across = Axis("optimizer step", (0, num_steps))
    chart = Chart(figure, box, list(curves), across, upwards)
    asides = {}
    for name, calls in curves.items():
        rates = _rates(calls * steps, warm, num_steps, times, decay) * base_rate * times
        chart.draw_curve(name, steps, rates, "predicted")
        asides[name] = _aside(calls, warm, num_steps, decay)
    chart.draw_key(asides)
    facts = [f"{name}: {words.replace(chr(10), ', ')}" for name, words in asides.items()]
    figure.alt_text = f"{heading} ({note}). {'; '.join(facts)}."
    return figure


def _rates(steps: Numbers, warm: int, num_steps: int, times: float, decay: str) -> Numbers:
    """What part of the full rate `WarmupThenDecay` has after so many calls."""
    from dtlab.training.learning_rate import DECAYS  # and with it torch, which takes a second

    left = max(1, num_steps - warm)
    going_up = 1 / times + (1 - 1 / times) * steps / max(1, warm)
    going_down = [DECAYS[decay](min(1.0, max(0.0, (step - warm) / left))) for step in steps]
    return np.where(steps < warm, going_up, going_down)


def _aside(calls: int, warm: int, num_steps: int, decay: str) -> str:
    """When the rate is full, and when it is gone."""
    words = f"full rate at step {warm / calls:.0f}"
    if decay == "constant":
        return words
    gone = f"\n0 from step {num_steps / calls:.0f} on"
    return words + gone + ("" if calls == 1 else f"\nfor {100 - 100 / calls:.0f} % of the run")
