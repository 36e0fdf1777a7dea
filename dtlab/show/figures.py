"""The figures: pure functions from a trace or from parameters to a `Figure`.

Each returns a `dtlab.show.style.Figure`, which a notebook shows as the last expression of a
cell, and whose `alt_text` says in words what is on it. Nothing here touches pyplot or other
global state.
"""

from __future__ import annotations

from dtlab.show.ring_figure import ring
from dtlab.show.timeline_figure import timeline

__all__ = ["ring", "timeline"]
