"""Draws what a late worker costs: where all wait for it, wait a little, or do not wait."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dtlab.predict.asynchronous import gradients_per_second, mean_delay, step_seconds
from dtlab.show.charts import KEY, Axis, Chart, Numbers
from dtlab.show.style import Figure

__all__ = ["straggler"]

_WIDTH, _HEIGHT = 9.4, 3.9
_LEFT, _TOP, _BOTTOM = 0.8, 0.95, 0.6
_STEPS: Final = 160
_SECONDS: Final = 0.1  # of a step: only the ratio of a delay to it counts
_DELAYS: Final = np.linspace(0, 4, 17)  # in steps


def straggler(
    delay: float = 1.0,
    num_workers: int = 8,
    staleness: int = 3,
    *,
    turns: bool = False,
    title: str | None = None,
) -> Figure:
    """Predict the gradients per second of `num_workers` workers, one of which is late.

    `delay` is by how much, in steps: 1 for a step that takes twice as long. It is the same worker
    in every step or, with `turns`, each time another one. `staleness` is how many steps ahead of
    the slowest a worker may be in between sync and async. See `dtlab.predict.finish_times`.
    Raises: ValueError for fewer than two workers, a delay below 0, or a staleness below 1.
    """
    if num_workers < 2 or staleness < 1 or not 0 <= delay < math.inf:
        raise ValueError(f"straggler: two workers or more, a staleness of 1 or more, a delay from "
                         f"0 on; not {num_workers}, {staleness} and {delay}.")  # fmt: skip
    leads = {"sync": 0.0, f"bounded, {staleness} ahead": staleness, "async": math.inf}
    who = "another one in each step" if turns else "always the same one"
    steps = f"{delay:g} step{'s' * (delay != 1)}"
    heading = title or f"One of {num_workers} workers is late by {steps}, {who}"
    note = "predicted; 100 % is what they compute without a delay"
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    most = max(float(_DELAYS[-1]), delay)
    across = Axis("delay of the late worker, in steps", (0, most * 1.02))
    upwards = Axis("gradients per second", (0, 109), write=lambda share: f"{share:g} %")
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - KEY, _HEIGHT - _TOP - _BOTTOM)
    chart = Chart(figure, box, list(leads), across, upwards)
    delays = np.union1d(_DELAYS, [delay])
    here, asides = {}, {}
    for name, lead in leads.items():
        shares = [_share(num_workers, each, lead, turns) for each in delays]
        chart.draw_curve(name, delays, np.array(shares), "predicted")
        here[name] = shares[int(np.searchsorted(delays, delay))]
        late = mean_delay(_seconds(num_workers, delay, turns), lead)
        asides[name] = f"{here[name]:.0f} %\na gradient is {late:.1f}\nupdates late"
    chart.draw_upright(delay, f"{delay:g}")
    chart.draw_points(delay, here)
    chart.draw_key(asides)
    facts = [f"{name} {' '.join(words.split())}" for name, words in asides.items()]
    figure.alt_text = (
        f"{heading} ({note}). {'; '.join(facts)}. Gradients per second fall as the delay grows "
        f"to {most:g} steps: {', '.join(_fall(num_workers, most, leads, turns))}."
    )
    return figure


def _seconds(num_workers: int, delay: float, turns: bool) -> Numbers:
    return step_seconds(num_workers, _STEPS, _SECONDS, delay * _SECONDS, turns=turns)


def _share(num_workers: int, delay: float, lead: float, turns: bool) -> float:
    """Gradients per second, in percent of what they are without a delay."""
    seconds = _seconds(num_workers, delay, turns)
    return 100 * gradients_per_second(seconds, lead) * _SECONDS / num_workers


def _fall(num_workers: int, delay: float, leads: dict[str, float], turns: bool) -> list[str]:
    return [f"{name} to {_share(num_workers, delay, lead, turns):.0f} %"
            for name, lead in leads.items()]  # fmt: skip
