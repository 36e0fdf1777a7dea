"""Widget for checkpoints.

explore_checkpoints()    cards, seconds of a save and of a restart, interval against goodput
"""

from __future__ import annotations

from typing import Final

from dtlab.predict.failures import goodput, seconds_between_failures
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.orchestration.jobs import goodput_curve
from dtlab.show.widgets.dials import Dial, count_scale, duration_scale
from dtlab.show.widgets.explorer import Explorer

__all__ = ["explore_checkpoints"]

_CARDS: Final = tuple(2**power for power in range(3, 18))
_ONE_CARD: Final = 16384 * 54 * 86400 / 419  # seconds, all causes (Llama 3, table 5)
_SAVES: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_RESTARTS: Final = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_INTERVALS: Final = (30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)


def explore_checkpoints() -> Explorer:
    """Find the checkpoint interval with the highest goodput for a job. See `goodput_curve`.

    A card with its share of hosts, network and software fails as often as in Llama 3's run: 419
    interruptions of all causes in 54 days on 16,384 H100s, or one in 5.8 years for each card. The
    dials start at that run's number of cards.
    """
    dials = {
        "cards": Dial("Number of cards", count_scale(_CARDS), 16384),
        "save": Dial("Time of a save", duration_scale(_SAVES), 60),
        "restart": Dial("Time of a restart", duration_scale(_RESTARTS), 600),
        "interval": Dial("Checkpoint interval", duration_scale(_INTERVALS), 3600),
    }

    def draw(cards: int, save: float, restart: float, interval: float) -> Figure:
        between = seconds_between_failures(_ONE_CARD, cards)
        lost = 24 * cards * (1 - goodput(interval, save, between, restart))
        note = f"{cards:,} cards lose {lost:,.0f} GPU hours a day"
        return goodput_curve(save, between, restart, interval, note=note)

    return Explorer(draw, dials, [[each.widget for each in dials.values()]])
