"""A block shared by ranks, with controls: a thin front, as in `widgets.py`."""

from __future__ import annotations

from dtlab.show.block_figure import parallel_block
from dtlab.show.dials import box, choice
from dtlab.show.style import Figure
from dtlab.show.widgets import Explorer

__all__ = ["explore_block"]


def explore_block(num_heads: int = 4) -> Explorer:
    """Set ranks, pass and sequence parallelism. See `parallel_block`."""
    ranks = choice("Ranks", [str(each) for each in (2, 4, 3, 1) if num_heads % each == 0])
    way = choice("Pass", ["forward", "backward"])
    sequence = box("Sequence parallelism", False)

    def draw(ranks: str, way: str, sequence: bool) -> Figure:
        return parallel_block(int(ranks), num_heads, sequence, way == "backward")

    controls = {"ranks": ranks, "way": way, "sequence": sequence}
    return Explorer(draw, controls, [[ranks, way, sequence]])
