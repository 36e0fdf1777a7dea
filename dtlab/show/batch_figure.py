"""Draws what an optimizer step is made of: copies of the model, their GPUs, their microbatches.

    copy 0  ■ ■   [ 4 ][ 4 ][ 4 ]  │        a copy works on its microbatches one after another,
    copy 1  ■ ■   [ 4 ][ 4 ][ 4 ]  │ step   on all of its GPUs; then all copies average
     GPUs of a copy   time ──►
"""

from __future__ import annotations

from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dtlab.show.style import COLOURS, INK, MUTED, Figure, blend, centred, edge

__all__ = ["effective_batch"]

_WIDTH, _HEIGHT = 9.4, 3.7
_TOP, _BOTTOM = 2.75, 0.45  # inches from below: where the copies are
_MOST_COPIES, _MOST_GPUS, _MOST_MICRO = 6, 8, 12
_GPUS, _MICRO, _END = 1.1, 3.0, 7.9  # inches from the left
_GPU: Final = blend(COLOURS["compute"], "#000000", 0.25)


def effective_batch(
    micro_batch: int = 4,
    micro_batches: int = 8,
    data_parallel: int = 4,
    gpus_per_copy: int = 2,
    *,
    title: str | None = None,
) -> Figure:
    """How many samples the gradient of one step is the mean of, and on how many GPUs.

    Each of `data_parallel` copies of the model takes `micro_batches` microbatches in a step, of
    `micro_batch` samples each. `gpus_per_copy` GPUs share one copy (tensor times pipeline
    parallelism), and work on the same samples. Raises ValueError for a number below 1.
    """
    numbers = micro_batch, micro_batches, data_parallel, gpus_per_copy
    if min(numbers) < 1:
        raise ValueError(f"effective_batch: all numbers are at least 1; not {numbers}.")
    batch, gpus = micro_batch * micro_batches * data_parallel, data_parallel * gpus_per_copy
    heading = title or (
        f"Effective batch: {_many(batch, 'sample')} in a step, on {_many(gpus, 'GPU')}"
    )
    product = f"{micro_batch:,} × {micro_batches:,} × {data_parallel:,} = {batch:,}"
    note = f"microbatch × microbatches × data-parallel degree: {product}"
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    axes = figure.sheet(0, 0, _WIDTH, _HEIGHT)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, _HEIGHT)
    _draw_copies(axes, *numbers)
    claimed = micro_batch * micro_batches * gpus
    aside = f"GPUs that share a copy see the same samples: times all {gpus:,} GPUs the product "
    aside += f"would be {claimed:,}, too many by a factor of {gpus_per_copy}."
    if gpus_per_copy > 1:
        axes.text(0.15, 0.2, aside, fontsize=8.5, color=MUTED, va="center")
    work = f"{_many(micro_batches, 'microbatch', 'microbatches')} of {micro_batch}"
    reduce = "one all-reduce and " if data_parallel > 1 else ""
    words = [
        f"{heading} ({note}).",
        f"{_many(data_parallel, 'copy', 'copies')} of the model, each on",
        f"{_many(gpus_per_copy, 'GPU')}, with {work}, one after another; then {reduce}the step.",
    ]
    figure.alt_text = " ".join([*words, aside] if gpus_per_copy > 1 else words)
    return figure


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _draw_copies(axes: Axes, micro: int, count: int, copies: int, gpus: int) -> None:
    """A row for each copy, or for the first ones and a line that says how many more there are."""
    shown = copies if copies <= _MOST_COPIES else _MOST_COPIES - 1
    pitch = min(0.62, (_TOP - _BOTTOM) / (shown + (shown < copies)))
    height = 0.72 * pitch
    for words, x in ((_gpu_words(gpus), _GPUS), ("microbatches, one after another", _MICRO)):
        axes.text(x, _TOP + 0.16, words, fontsize=8, color=MUTED, va="center")
    for copy in range(shown):
        low = _TOP - (copy + 1) * pitch + (pitch - height) / 2
        axes.text(0.15, low + height / 2, f"copy {copy}", fontsize=9, color=INK, va="center")
        _draw_gpus(axes, low, height, gpus)
        _draw_micro_batches(axes, low, height, micro, count)
    bottom = _TOP - shown * pitch
    if shown < copies:
        words = f"and {copies - shown:,} more copies"
        axes.text(0.15, bottom - pitch / 2, words, fontsize=9, color=MUTED, va="center")
        bottom -= pitch
    _draw_step(axes, _MICRO + min(count, _MOST_MICRO) * _across(count) + 0.1, bottom, copies)


def _gpu_words(gpus: int) -> str:
    return "its GPU" if gpus == 1 else f"its {gpus} GPUs"


def _draw_gpus(axes: Axes, low: float, height: float, gpus: int) -> None:
    shown = gpus if gpus <= _MOST_GPUS else _MOST_GPUS - 1
    side = min(height, 0.17)
    for number in range(shown):
        corner = (_GPUS + 0.21 * number, low + (height - side) / 2)
        axes.add_artist(Rectangle(corner, side, side, facecolor=_GPU, gid="gpu"))
    if shown < gpus:
        place = (_GPUS + 0.21 * shown + side / 2, low + height / 2)
        axes.text(*place, "…", **centred(9, INK))


def _draw_micro_batches(axes: Axes, low: float, height: float, micro: int, count: int) -> None:
    shown = count if count <= _MOST_MICRO else _MOST_MICRO - 1
    across, fill = _across(count), COLOURS["forward"]
    for number in range(shown):
        left = _MICRO + number * across
        box = Rectangle((left, low), 0.9 * across, height, facecolor=fill, edgecolor=edge(fill),
                        linewidth=0.6, gid="microbatch")  # fmt: skip
        axes.add_artist(box)
        size = 8 if len(str(micro)) < 4 else 6.5
        axes.text(left + 0.45 * across, low + height / 2, str(micro), **centred(size, INK))
    if shown < count:
        axes.text(_MICRO + (shown + 0.45) * across, low + height / 2, "…", **centred(9, INK))


def _across(count: int) -> float:
    """Inches for a microbatch and the gap after it."""
    return min(0.7, (_END - _MICRO) / min(count, _MOST_MICRO))


def _draw_step(axes: Axes, left: float, bottom: float, copies: int) -> None:
    """What comes after the last microbatch: with one copy nothing has to travel."""
    fill = COLOURS["communication"] if copies > 1 else COLOURS["optimizer"]
    box = Rectangle((left, bottom), 0.16, _TOP - bottom, facecolor=fill, edgecolor=edge(fill),
                    linewidth=0.6, gid="step")  # fmt: skip
    axes.add_artist(box)
    words = "one all-reduce,\nthen the step" if copies > 1 else "the step"
    axes.text(left + 0.24, (bottom + _TOP) / 2, words, fontsize=8, color=INK, va="center")
