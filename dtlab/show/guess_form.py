"""The form in which a learner enters a guess: a field and a button, or a button per option."""

from __future__ import annotations

import functools
import html
import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol

__all__ = ["form"]


class Question(Protocol):
    """What the form needs of a `Guess`."""

    question: str
    unit: str
    options: tuple[str, ...] | None
    value: Any
    revealed: bool
    on_reveal: list[Callable[[], None]]

    def commit(self, typed: Any) -> None:
        """Set the guess, or raise `ValueError`."""

    def words(self, value: Any) -> str:
        """Return a guess in words, with its unit."""


def form(guess: Question) -> Any:
    """Build the form as a widget: the question, the controls, and a status line.

    By keyboard: press Tab to reach the field, type, press Enter; or press Tab to reach an option,
    and then the space bar. In JupyterLab the next cell is selected then, so that Shift+Enter runs
    it. Leaving the field commits the guess too. The field shows an earlier guess if there is one.
    """
    import ipywidgets as widgets

    status = widgets.HTML()
    controls = _buttons(guess, status) if guess.options else _field(guess, status)
    question = widgets.HTML(f"<b>Guess.</b> {html.escape(guess.question)}")
    row = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))

    def freeze() -> None:
        for control in controls:
            control.disabled = True

    guess.on_reveal.append(freeze)
    if guess.value is not None:
        status.value = _status(_committed(guess))
    if guess.revealed:
        freeze()
    return widgets.VBox([question, row, status])


def _field(guess: Question, status: Any) -> list[Any]:
    """Build a field for a number, its unit, and a button."""
    import ipywidgets as widgets

    field = widgets.Text(
        value="" if guess.value is None else str(guess.value),
        placeholder="a number", description="Your guess", continuous_update=False,
        tooltip=guess.question, layout=widgets.Layout(width="17em"),
    )  # fmt: skip
    unit = widgets.Label(guess.unit)
    button = widgets.Button(description="Commit", layout=widgets.Layout(width="6em"))
    field.observe(lambda change: _commit(guess, change["new"], status, "input"), names="value")
    button.on_click(lambda _: _commit(guess, field.value, status, "button"))
    return [field, unit, button]


def _buttons(guess: Question, status: Any) -> list[Any]:
    """Build a button for each option; the chosen one is marked."""
    import ipywidgets as widgets

    layout = widgets.Layout(width="auto")
    buttons = [widgets.Button(description=option, layout=layout) for option in guess.options or ()]

    for button in buttons:
        button.icon = "check" if button.description == guess.value else ""

    def choose(chosen: Any, _: Any) -> None:
        _commit(guess, chosen.description, status, "button")
        for button in buttons:
            button.icon = "check" if button is chosen else ""

    for button in buttons:
        button.on_click(functools.partial(choose, button))
    return buttons


def _commit(guess: Question, typed: Any, status: Any, control: str) -> None:
    """Set the guess from the input, or show in `status` what is wrong with it.

    `control` is the kind of element that has the focus if the learner wants the next cell.
    """
    try:
        guess.commit(typed)
    except ValueError as error:
        status.value = _status(str(error))
    else:
        status.value = _status(_committed(guess)) + _next_cell(control)


def _committed(guess: Question) -> str:
    """Say which guess was set, and what to do next."""
    line = f"Your guess is {guess.words(guess.value)}."
    return line if guess.revealed else f"{line} Now run the next cell."


_COMMITS: Final = itertools.count()


def _next_cell(control: str) -> str:
    """Return an image that cannot load, whose error handler selects the next cell in JupyterLab.

    After Enter the focus would stay in the field, where Shift+Enter does nothing. JupyterLab turns
    to command mode when a cell gets the focus. The focus moves only if it is on a `control` of
    this cell, or on nothing because the control was disabled: a learner who left the field by Tab
    or by a click chose another place. The number makes each commit a change of the status line.
    """
    script = (
        "const cell = this.closest('.jp-Cell'), at = document.activeElement; this.remove(); "
        f"if (cell && (at === document.body || cell.contains(at) && at.matches('{control}'))) "
        "cell.nextElementSibling?.focus();"
    )
    number = next(_COMMITS)
    return f'<img src="data:,{number}" alt="" style="display:none" onerror="{script}">'


def _status(words: str) -> str:
    return f'<span role="status">{html.escape(words)}</span>'
