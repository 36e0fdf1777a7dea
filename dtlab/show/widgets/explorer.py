"""`Explorer`, a figure with controls, and widgets that step through rings and trees.

    step_ring(), step_tree()     round by round, with a dial and two buttons
    explore_crossover()          time of an all-reduce by size, ranks, link and algorithm

All controls can be reached with Tab. The arrow keys move a slider that has the focus, the space
bar ticks a box, and Enter commits a field. Without a front end the initial figure is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dtlab.show.drawing.style import Figure
from dtlab.show.figures.costs import ALL_REDUCES, crossover
from dtlab.show.figures.ring import ring
from dtlab.show.figures.rounds import TreeOperation, ring_rounds, tree, tree_rounds
from dtlab.show.notebook import Kept, in_a_kernel
from dtlab.show.widgets.dials import Dial, box, bytes_scale, count_scale, rate_scale, seconds_scale

__all__ = ["Explorer", "explore_crossover", "step_ring", "step_tree"]


class Explorer:
    """A figure and the controls above it, by name; `figure` is the figure currently shown."""

    figure: Figure

    def __init__(
        self,
        draw: Callable[..., Figure],
        controls: Mapping[str, Any],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        """`draw` takes each control's value by name; `rows` are the widgets above the figure."""
        import ipywidgets as widgets

        self.controls = controls
        self._draw = draw
        self._kept: Kept | None = None
        self._picture = widgets.HTML()
        for control in controls.values():
            control.observe(self._redraw, names="value")
        wrap = widgets.Layout(flex_flow="row wrap", overflow="visible")
        boxes = [widgets.HBox(list(row), layout=wrap) for row in rows]
        self.widget = widgets.VBox([*boxes, self._picture])
        self._redraw()

    def _redraw(self, _: Any = None) -> None:
        self.figure = self._draw(**{name: each.value for name, each in self.controls.items()})
        self._picture.value = self.figure.to_html()
        if self._kept is not None:
            self._kept.update(self._picture.value, self.figure.alt_text)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the controls with their figure; pages without widgets get the figure alone."""
        widget = {**self.widget._repr_mimebundle_(), "text/plain": self.figure.alt_text}
        if in_a_kernel():
            self._kept = Kept(self._picture.value, self.figure.alt_text)
            return widget
        return {**widget, "text/html": self._picture.value}


def step_ring(num_ranks: int = 4) -> Explorer:
    """Step through a ring all-reduce among 1 to 8 ranks, round by round. See `ring`."""
    return _stepper(lambda step: ring(num_ranks, step), len(ring_rounds(num_ranks)) - 1)


def step_tree(num_ranks: int = 8, *, operation: TreeOperation = "all_reduce") -> Explorer:
    """Step through a binomial tree among 1 to 8 ranks, round by round. See `tree`."""
    return _stepper(
        lambda step: tree(num_ranks, step, operation=operation),
        len(tree_rounds(num_ranks, operation)) - 1,
    )


def _stepper(draw: Callable[[int], Figure], last: int) -> Explorer:
    """Build a dial over the steps of a figure, and buttons for the previous and the next step."""
    import ipywidgets as widgets

    dial = Dial("Rounds done", count_scale(range(last + 1)), 0, width="7em")
    layout = widgets.Layout(width="7em")
    back, forth = (
        widgets.Button(description=words, layout=layout) for words in ("◀ Previous", "Next ▶")
    )

    def move(by: int) -> None:
        dial.value = min(max(dial.value + by, 0), last)

    back.on_click(lambda _: move(-1))
    forth.on_click(lambda _: move(1))
    return Explorer(draw, {"step": dial}, [[dial.widget, back, forth]])


_RANKS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
_MICROSECONDS: Final = (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)
_GIGABYTES: Final = (0.125, 0.5, 1.25, 2.5, 5, 12.5, 25, 31, 50, 63, 100, 200, 300, 450, 900)
_SIZES: Final = tuple(digit * 10.0**power for power in range(2, 10) for digit in (1, 2, 3, 5, 7))


def explore_crossover(algorithms: Sequence[str] = tuple(ALL_REDUCES)) -> Explorer:
    """Find the fastest all-reduce for a size, a number of ranks and a link. See `crossover`.

    `algorithms` are names of `ALL_REDUCES`, each with a box that shows or hides it. The dials
    start at the 5 µs and 50 GB/s of InfiniBand NDR. Their sliders stop at round values for NVLink,
    PCIe, InfiniBand and Ethernet; the fields accept any value in between.
    """
    import ipywidgets as widgets

    dials = _dials()
    boxes = {name: box(name) for name in algorithms}

    def draw(**values: Any) -> Figure:
        shown = [name for name in algorithms if values.pop(name)]
        return crossover(**values, algorithms=shown)

    show = [widgets.Label("Show", layout=widgets.Layout(margin="2px 1em 2px 2px"))]
    rows = [each.widget for each in dials.values()], [*show, *boxes.values()]
    return Explorer(draw, dials | boxes, rows)


def _dials() -> dict[str, Any]:
    """Build the dials of an all-reduce, keyed by the parameter names of `crossover`."""
    latencies = seconds_scale([round(each * 1e-6, 10) for each in _MICROSECONDS])
    bandwidths = rate_scale([each * 1e9 for each in _GIGABYTES])
    return {
        "size": Dial("Size of the tensor", bytes_scale([*_SIZES, 1e10]), 1e6),
        "num_ranks": Dial("Number of ranks", count_scale(_RANKS), 8),
        "latency": Dial("Latency of a link", latencies, 5e-6),
        "bandwidth": Dial("Bandwidth of a link", bandwidths, 50e9),
    }
