"""Figures with controls: thin fronts that draw a figure anew when one of their values changes.

    step_ring(), step_tree()     round by round, with a slider and two buttons
    explore_crossover()          size, ranks and link against the time of an all-reduce

All controls are reached by Tab; a slider that has the focus moves with the arrow keys. Where
nothing answers, as in a run without a front end, the figure of the start is what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dtlab.show.crossover_figure import ALL_REDUCES, crossover
from dtlab.show.ring_figure import ring
from dtlab.show.rounds import TreeOperation, ring_rounds, tree_rounds
from dtlab.show.style import Figure
from dtlab.show.tree_figure import tree
from dtlab.show.words import byte_words, short_words, time_words

__all__ = ["Explorer", "explore_crossover", "step_ring", "step_tree"]


class Explorer:
    """A figure and the controls above it, by name; `figure` is the one that is shown now."""

    figure: Figure

    def __init__(
        self,
        draw: Callable[..., Figure],
        controls: dict[str, Any],
        extras: Sequence[Any] = (),
    ) -> None:
        """`draw` takes the value of each control by its name; `extras` stand beside them."""
        import ipywidgets as widgets

        self.controls = controls
        self._draw = draw
        self._picture = widgets.HTML()
        for control in controls.values():
            control.observe(self._redraw, names="value")
        wrap = widgets.Layout(flex_flow="row wrap")
        row = widgets.HBox([*controls.values(), *extras], layout=wrap)
        self.widget = widgets.VBox([row, self._picture])
        self._redraw()

    def _redraw(self, _: Any = None) -> None:
        self.figure = self._draw(**{name: each.value for name, each in self.controls.items()})
        self._picture.value = self.figure.to_html()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The controls with their figure; the figure alone for readers that have no widgets."""
        alone = {"text/html": self._picture.value, "text/plain": self.figure.alt_text}
        return {**self.widget._repr_mimebundle_(), **alone}


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
    """A slider over the steps of a figure, and buttons for the one before and the next."""
    import ipywidgets as widgets

    slider = widgets.IntSlider(0, 0, last, description="Round", tooltip="Rounds that are done")
    layout = widgets.Layout(width="7em")
    back, forth = (
        widgets.Button(description=words, layout=layout) for words in ("◀ Previous", "Next ▶")
    )

    def move(by: int) -> None:
        slider.value = min(max(slider.value + by, 0), last)

    back.on_click(lambda _: move(-1))
    forth.on_click(lambda _: move(1))
    return Explorer(draw, {"step": slider}, [back, forth])


_RANKS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
_MICROSECONDS: Final = (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)
_GIGABYTES: Final = (0.125, 0.5, 1.25, 2.5, 5, 12.5, 25, 31, 50, 63, 100, 200, 300, 450, 900)
_SIZES: Final = tuple(digit * 10.0**power for power in range(2, 10) for digit in (1, 2, 5))


def explore_crossover(algorithms: Sequence[str] = tuple(ALL_REDUCES)) -> Explorer:
    """Find the fastest all-reduce for a size, a number of ranks and a link. See `crossover`.

    `algorithms` are names of `ALL_REDUCES`. The sliders stop at InfiniBand NDR's 5 µs and 50 GB/s
    at first, and have the round figures of NVLink, PCIe, InfiniBand and Ethernet among theirs.
    """
    latencies = [round(each * 1e-6, 10) for each in _MICROSECONDS]
    bandwidths = [each * 1e9 for each in _GIGABYTES]
    rate = [f"{short_words(byte_words(each))}/s" for each in bandwidths]
    controls = {
        "size": _slider("Size", _SIZES, [short_words(byte_words(size)) for size in _SIZES], 1e6),
        "num_ranks": _slider("Ranks", _RANKS, [str(ranks) for ranks in _RANKS], 8),
        "latency": _slider(
            "Latency", latencies, [short_words(time_words(each)) for each in latencies], 5e-6
        ),
        "bandwidth": _slider("Bandwidth", bandwidths, rate, 50e9),
    }

    def draw(**values: Any) -> Figure:
        return crossover(**values, algorithms=algorithms)

    return Explorer(draw, controls)


def _slider(name: str, values: Sequence[float], labels: Sequence[str], start: float) -> Any:
    """A slider over a few values, each with its name."""
    import ipywidgets as widgets

    options = list(zip(labels, values, strict=True))
    return widgets.SelectionSlider(options=options, value=start, description=name)
