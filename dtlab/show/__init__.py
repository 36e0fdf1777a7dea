"""Figures drawn from a `Trace` or from parameters: pure functions that return a `Figure`."""

from __future__ import annotations

from dtlab.show.figures import ring, timeline
from dtlab.show.style import COLOURS, Figure

__all__ = ["COLOURS", "Figure", "ring", "timeline"]
