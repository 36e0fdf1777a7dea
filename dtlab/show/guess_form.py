"""The form in which a learner enters a guess: a field and a button, or a button per option."""

from __future__ import annotations

import functools
import html
import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol

__all__ = ["form", "on_display", "then_next_cell"]


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

    By keyboard in JupyterLab: Shift+Enter runs the cell and selects the field or the first option.
    Type a number and press Enter, or press Tab until the option is reached and then the space bar:
    the next cell runs. Enter in the empty field runs it too, and Escape only selects it. Leaving
    the field commits the guess without running a cell. The field shows an earlier guess.
    """
    import ipywidgets as widgets

    status = widgets.HTML(on_display("button" if guess.options else "input"))
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
        run = not guess.revealed  # otherwise the answer is there already
        status.value = _status(_committed(guess)) + then_next_cell(control, run=run)


def _committed(guess: Question) -> str:
    """Say which guess was set, and what to do next."""
    line = f"Your guess is {guess.words(guess.value)}."
    return line if guess.revealed else f"{line} The next cell shows the answer."


# The focus ---------------------------------------------------------------------------------------
#
# After Shift+Enter the focus would be on the next cell, and after Enter it would stay in the
# field. So the outputs carry scripts that move it: in the error handler of an image that cannot
# load, because the front end runs no other script of an HTML widget. JupyterLab turns to command
# mode when a cell gets the focus, and runs the cell when it sees Shift+Enter.

_SCRIPTS: Final = itertools.count()
_RUN: Final = (
    "next.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', code: 'Enter', keyCode: 13, "
    "shiftKey: true, bubbles: true, cancelable: true}));"
)


def then_next_cell(control: str, *, run: bool) -> str:
    """Return HTML that selects the next cell in JupyterLab, and also runs it if `run`.

    It does so only if the focus is on a `control` of this cell, or on nothing because the control
    was disabled: a learner who left the field by Tab or by a click chose another place.
    """
    return _script(
        f"if (at === document.body || cell.contains(at) && at.matches('{control}')) "
        f"{{next?.focus(); {_RUN if run else ''}}}"
    )


def on_display(control: str) -> str:
    """Return HTML that moves the focus to the first `control` of this output, as it is shown.

    It does so only if the focus is on the next cell, where it is after Shift+Enter. From there on,
    Enter in an empty field runs the next cell, and Escape selects it.
    """
    leave = (
        "event => {const first = event.target; if (event.key === 'Escape') next?.focus(); else if "
        "(event.key === 'Enter' && first.matches('input') && !first.value.trim()) "
        f"{{next?.focus(); {_RUN}}}}}"
    )
    return _script(
        "const look = left => {"
        f"const controls = [...output.querySelectorAll('{control}')]; "
        f"controls.forEach(one => one.addEventListener('keydown', {leave}, true)); "
        "if (!controls.length && left) setTimeout(() => look(left - 1), 50); "
        "else if (next?.contains(at) && !at.closest('.cm-editor')) controls[0]?.focus();}; "
        "look(40);"
    )


def _script(body: str) -> str:
    """Return an image that cannot load; the number makes each one a change of its widget."""
    start = (
        "const cell = this.closest('.jp-Cell'), output = this.closest('.jp-OutputArea-child'), "
        "next = cell?.nextElementSibling, at = document.activeElement; this.remove(); "
    )
    script = html.escape(f"{start}if (cell) {{{body}}}")
    source = f"data:,{next(_SCRIPTS)}"
    return f'<img src="{source}" alt="" style="display:none" onerror="{script}">'


def _status(words: str) -> str:
    return f'<span role="status">{html.escape(words)}</span>'
