"""Figure of the decision tree for strategies, with the path of one job.

    Does a whole replica fit on a card?                642 GB > 80 GB
    ├─ yes  Is one GPU fast enough?
    ┗━ no   Do the activations of one microbatch fit?  2 GB <= 80 GB
            ┣━ yes ...

The figure has one row for each node of `predict.decision.TREE`. The path of the job is thick, dark
and marked; the rest is pale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes

from dtlab.predict.decision import ROOT, TREE, Leaf, Step
from dtlab.predict.strategy import Choice
from dtlab.show.drawing.style import INK, MUTED, PALETTE, SHEET, Figure, blend

__all__ = ["decision_tree"]

_WIDTH, _LEFT, _TOP, _BOTTOM = 9.4, 0.2, 0.85, 0.15  # inches
_ROW, _INDENT = 0.245, 0.5  # inches: height of a row; width of a level, with its "yes" or "no"
_NUMBERS: Final = 6.85  # inches from the left to the compared numbers
_LIT: Final = PALETTE[0]
_PALE: Final = "#B9BDB8"


@dataclass(frozen=True)
class _Row:
    """A node with its depth, the answer that leads to it, and the row of its parent question."""

    id: str
    depth: int
    answer: str
    above: int
    lit: bool


def decision_tree(choice: Choice | None = None, *, title: str | None = None) -> Figure:
    """Draw the tree that `dtlab.predict.choose` follows; a `Choice` highlights its path.

    Beside each question on the path are the two numbers that it compares. A mark shows the
    question whose answer decided the choice.
    """
    steps = {} if choice is None else {step.question.id: step for step in choice.path}
    rows = list(_rows(ROOT, 0, "", -1, steps, choice is not None, [0]))
    heading = title or (
        "Which strategy?" if choice is None else choice.strategy[0].upper() + choice.strategy[1:]
    )
    note = "yes means that a number is at most its limit" if choice is None else (
        f"because {choice.because}")  # fmt: skip
    height = _TOP + _ROW * len(rows) + _BOTTOM
    figure = Figure(_WIDTH, height, alt_text=_alt_text(heading, choice))
    figure.heading(heading, note)
    axes = figure.sheet(0, 0, _WIDTH, height)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, height)
    for lit in (False, True):  # draw the highlighted path last, on top
        for number, row in enumerate(rows):
            if row.above >= 0 and row.lit is lit:
                _draw_branch(axes, row, _y(row.above, height), _y(number, height))
    for number, row in enumerate(rows):
        _draw_node(axes, row, _y(number, height), choice, steps.get(row.id))
    return figure


def _rows(
    node_id: str, depth: int, answer: str, above: int, steps: Mapping[str, Step], lit: bool,
    count: list[int],
) -> Iterator[_Row]:  # fmt: skip
    """Yield a node and its subtree from top to bottom; `count` counts the rows so far."""
    node, place = TREE[node_id], count[0]
    count[0] += 1
    yield _Row(node_id, depth, answer, above, lit)
    if isinstance(node, Leaf):
        return
    step = steps.get(node_id)
    for words, child, holds in (("yes", node.yes, True), ("no", node.no, False)):
        taken = lit and step is not None and step.holds is holds
        yield from _rows(child, depth + 1, words, place, steps, taken, count)


def _y(row: int, height: float) -> float:
    """Return the middle of a row."""
    return height - _TOP - (row + 0.5) * _ROW


def _x(depth: int) -> float:
    """Return the left end of the text of a level."""
    return _LEFT + depth * _INDENT


def _draw_branch(axes: Axes, row: _Row, top: float, y: float) -> None:
    """Draw the line from the parent question to this row, and the answer that leads here."""
    left = _x(row.depth - 1) + 0.06
    colour, width = (_LIT, 2.6) if row.lit else (_PALE, 1.0)
    axes.plot([left, left, left + 0.09], [top - 0.1, y, y], color=colour, linewidth=width,
              solid_joinstyle="miter", gid=f"branch {row.id}")  # fmt: skip
    axes.text(left + 0.13, y, row.answer, fontsize=8, color=INK if row.lit else MUTED,
              weight="bold" if row.lit else "normal", va="center", ha="left")  # fmt: skip


def _draw_node(axes: Axes, row: _Row, y: float, choice: Choice | None, step: Step | None) -> None:
    """Draw a node's text; a strategy is in a box, which is filled at the end of the path."""
    node = TREE[row.id]
    lit, pale = row.lit and choice is not None, not row.lit and choice is not None
    ink = MUTED if pale else INK
    if isinstance(node, Leaf):
        words = axes.text(_x(row.depth) + 0.05, y, node.strategy, fontsize=8, va="center")
        words.set(color="#FFFFFF" if lit else ink, weight="bold" if lit else "normal")
        words.set(gid=f"leaf {row.id}")
        face = _LIT if lit else blend(SHEET, _LIT, 0.04 if pale else 0.14)
        words.set_bbox({"boxstyle": "round,pad=0.25", "facecolor": face, "linewidth": 0.8,
                        "edgecolor": blend(_LIT, "#000000", 0.3) if lit else _PALE})  # fmt: skip
        return
    words = axes.text(_x(row.depth), y, node.text, fontsize=8.5, color=ink, va="center")
    words.set(weight="bold" if lit else "normal", gid=f"question {row.id}")
    if step is not None and choice is not None:
        drove = step is choice.because
        text = f"{_comparison(step)}{'   ◄ drove it' if drove else ''}"
        axes.text(_NUMBERS, y, text, fontsize=8.5, color=INK, va="center", gid=f"step {row.id}",
                  weight="bold" if drove else "normal")  # fmt: skip


def _comparison(step: Step) -> str:
    """Format the two numbers that a step compares, as in `642 GB > 80 GB`."""
    return (" ≤ " if step.holds else " > ").join(step.numbers) if step.known else "not known: yes"


def _alt_text(heading: str, choice: Choice | None) -> str:
    questions = sum(not isinstance(node, Leaf) for node in TREE.values())
    tree = f"A decision tree of {questions} questions and {len(TREE) - questions} strategies"
    if choice is None:
        return f"{heading} {tree}. It begins with: {getattr(TREE[ROOT], 'text', '')}"
    path = [
        f"{step.question.text} {'Yes' if step.holds else 'No'}, {_comparison(step)}."
        for step in choice.path
    ]
    return f"{heading}, because {choice.because}. {tree}; the path: {' '.join(path)}"
