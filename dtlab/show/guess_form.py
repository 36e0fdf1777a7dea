"""The form in which a learner commits to a guess: a field and a button, or a button per option."""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtlab.show.guess import Guess, Value

__all__ = ["form"]


def form(guess: Guess) -> Any:
    """The form as a widget: question, controls, and what was understood.

    By keyboard: Tab to the field, type, Enter. Leaving the field commits too. A guess that was
    made before stands in it.
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


def _field(guess: Guess, status: Any) -> list[Any]:
    """A field for a number with its unit, and a button."""
    import ipywidgets as widgets

    field = widgets.Text(
        value="" if guess.value is None else str(guess.value),
        placeholder="a number", description="Your guess", continuous_update=False,
        tooltip=guess.question, layout=widgets.Layout(width="17em"),
    )  # fmt: skip
    unit = widgets.Label(guess.unit)
    button = widgets.Button(description="Commit", layout=widgets.Layout(width="6em"))
    field.observe(lambda change: _commit(guess, change["new"], status), names="value")
    button.on_click(lambda _: _commit(guess, field.value, status))
    return [field, unit, button]


def _buttons(guess: Guess, status: Any) -> list[Any]:
    """A button for each option; the chosen one is marked."""
    import ipywidgets as widgets

    layout = widgets.Layout(width="auto")
    buttons = [widgets.Button(description=option, layout=layout) for option in guess.options or ()]

    for button in buttons:
        button.icon = "check" if button.description == guess.value else ""

    def choose(chosen: Any, _: Any) -> None:
        _commit(guess, chosen.description, status)
        for button in buttons:
            button.icon = "check" if button is chosen else ""

    for button in buttons:
        button.on_click(functools.partial(choose, button))
    return buttons


def _commit(guess: Guess, typed: Value, status: Any) -> None:
    """Take what was typed, or say what is wrong with it."""
    try:
        guess.commit(typed)
    except ValueError as error:
        words = str(error)
    else:
        words = _committed(guess)
    status.value = _status(words)


def _committed(guess: Guess) -> str:
    """What was understood, and what to do next.

    After Enter the focus is still in the field and this cell still selected, so that the toolbar
    would run it again and not the next one.
    """
    made = f"Your guess is {guess.words(guess.value)}."
    return made if guess.revealed else f"{made} Click into the next cell and run it."


def _status(words: str) -> str:
    return f'<span role="status">{html.escape(words)}</span>'
