"""Parts of a figure, found by the names of its artists, and a check that no text is cut."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from dtlab.show.drawing.style import Figure

__all__ = ["boxes", "check_layout", "lines", "programs_words", "texts"]


def lines(figure: Figure) -> dict[str, Any]:
    """The lines of a figure by their names."""
    return {line.get_gid(): line for axes in figure.axes for line in axes.lines}


def texts(figure: Figure) -> list[str]:
    """The texts of a figure, except those at ticks."""
    return [text.get_text() for text in _words(figure)]


def boxes(figure: Figure, name: str) -> list[Any]:
    """The patches of a figure that have this name."""
    return [patch for axes in figure.axes for patch in axes.patches if patch.get_gid() == name]


def programs_words(text: str) -> list[str]:
    """What only programs write: exponents such as 6.55e+04, and reprs such as Cluster(nodes=4)."""
    return re.findall(r"\d+e[-+]\d+|\w+\(\w+=[^)]*\)|\w+\(\d+ [^)]*\)|<[\w.]+ object.*?>", text)


def check_layout(figure: Figure) -> None:
    """Check that it has a title and an alt text, and that its texts are on it and apart."""
    (title,) = [text for text in figure.texts if text.get_gid() == "title"]
    assert figure.alt_text.startswith(title.get_text())
    assert len(figure.alt_text) > 60
    assert not programs_words(figure.alt_text)
    FigureCanvasAgg(figure).draw()
    sheet = figure.bbox
    for text in _words(figure):
        box = text.get_window_extent()
        assert sheet.x0 <= box.x0 <= box.x1 <= sheet.x1, text.get_text()
        assert sheet.y0 <= box.y0 <= box.y1 <= sheet.y1, text.get_text()
    found = [text for text in (*_words(figure), *_at_ticks(figure)) if text.get_text()]
    placed = [(text.get_text(), text.get_window_extent()) for text in found]
    for (words, one), (other_words, other) in combinations(placed, 2):
        apart = one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1
        apart = apart or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1
        assert apart, (words, other_words)


def _words(figure: Figure) -> list[Text]:
    return [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]


def _at_ticks(figure: Figure) -> list[Text]:
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks()
                      if low <= tick.get_loc() <= high]  # fmt: skip
    return found
