"""`dtlab.guess`: records a learner's prediction before the answer is shown.

    sent = guess("How many MB does rank 0 send?", unit="MB")     a field appears, the cell is done
    ...
    sent.reveal(48)          You guessed 16 MB; it is 48 MB: too low by a factor of 3.

Nothing waits for the learner: where nobody committed to anything, as in a run without a front
end, `reveal` says so and gives the answer. A cell that runs again goes on with the guess that was
made in it: the kernel's variables still hold it.
"""

from __future__ import annotations

import functools
import html
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from dtlab.show.notebook import Kept, in_a_kernel, kernel_variables, show_bundle
from dtlab.show.words import number_from_words

__all__ = ["Guess", "distance_words", "form", "guess"]

Value = int | float | str

_CLOSE: Final = 0.1
_GREEN, _GREY = "#1b7f4b", "#7a8288"  # both stand out on a light and on a dark page


def guess(
    question: str,
    unit: str = "",
    *,
    options: Sequence[str] | None = None,
    value: Value | None = None,
) -> Guess:
    """Ask for a number in `unit`, or for one of `options`, and come back at once.

    In a notebook a field, or a button for each option, appears below the cell; what is typed there
    is in `.value` of the result, and `.reveal(answer)` in a later cell compares the two. `value`
    commits to a guess in code. A variable of the notebook that holds the same question already is
    what comes back, with the guess in it. Raises `ValueError` where `value` is no number or no
    option.
    """
    fresh = Guess(question, unit, options)
    known = (one for one in kernel_variables() if isinstance(one, Guess) and one.asks_as(fresh))
    made = next(known, fresh)
    if value is not None:
        made.commit(value)
        show_bundle({"text/plain": f"{question} Your guess: {made.words(made.value)}."})
    elif in_a_kernel():
        made.keep()
        show_bundle({**form(made)._repr_mimebundle_(), "text/plain": made.asking})
    else:
        show_bundle({"text/plain": made.asking})
    return made


class Guess:
    """A question, and the guess that was made: `value` is None as long as there is none."""

    value: Value | None

    def __init__(self, question: str, unit: str, options: Sequence[str] | None) -> None:
        if options is not None and len(options) < 2:
            raise ValueError(f"guess: options={options!r}. Give at least two.")
        self.question = question
        self.unit = unit
        self.options = None if options is None else tuple(options)
        self.value = None
        self.revealed = False
        self._kept: Kept | None = None
        self.on_reveal: list[Callable[[], None]] = []

    @property
    def asking(self) -> str:
        """The question as one line of text."""
        choice = f" ({' / '.join(self.options)})" if self.options else ""
        return f"Guess: {self.question}{choice}"

    def asks_as(self, other: Guess) -> bool:
        """Whether both ask the same question."""
        mine = (self.question, self.unit, self.options)
        return mine == (other.question, other.unit, other.options)

    def commit(self, typed: Value) -> None:
        """Take this for the guess, in place of an earlier one.

        Raises `ValueError`, and leaves no guess, where it is no number or none of the options.
        """
        self.value = None
        try:
            self.value = self._option(typed) if self.options else _number(typed, self.unit)
        finally:
            if self._kept is not None:
                self._kept.update(*self._as_text())

    def keep(self) -> None:
        """Show the question and the guess as text, readable after the form's kernel has ended."""
        self._kept = Kept(*self._as_text())

    def _as_text(self) -> tuple[str, str]:
        guessed = self.value is not None
        made = f"Your guess: {self.words(self.value)}." if guessed else "No guess was made."
        page = f"<b>Guess.</b> {html.escape(self.question)}<br>{html.escape(made)}"
        return page, f"{self.asking} {made}"

    def reveal(self, answer: Value, note: str = "") -> None:
        """Show the answer, how far off the guess was, and `note` after it.

        `answer` is a number in the guess's unit, or one of its options. From here on the guess
        cannot be changed in its cell. Raises `ValueError` for an answer that nobody can guess.
        """
        words = self._verdict(answer)
        told = f"{words} {note}".strip()
        colour = _GREEN if words.endswith("that is right.") else _GREY
        box = f"border-left:4px solid {colour};padding:.3em .8em;color:inherit"
        page = f'<div style="{box}"><b>{html.escape(words)}</b> {html.escape(note)}</div>'
        show_bundle({"text/plain": told, "text/html": page})
        if self.value is not None:
            self.revealed = True
            for tell in self.on_reveal:
                tell()

    def words(self, value: Value | None) -> str:
        """A guess or an answer with its unit."""
        if value is None:
            return "nothing"
        number = value if isinstance(value, str) else _number_words(value)
        return f"{number} {self.unit}".strip()

    def __repr__(self) -> str:
        made = "no guess yet" if self.value is None else self.words(self.value)
        return f"<{self.question} {made}>"

    def _verdict(self, answer: Value) -> str:
        """How far off the guess was, in one sentence."""
        actual = self._answer(answer)
        if self.value is None:
            return f"No guess was made. It is {self.words(actual)}."
        if isinstance(self.value, str) or isinstance(actual, str):
            if self.value == actual:
                return f"You chose {self.words(actual)}, and that is right."
            return f"You chose {self.words(self.value)}; it is {self.words(actual)}."
        distance = distance_words(self.value, actual, self.unit)
        if not distance:
            return f"You guessed {self.words(self.value)}, and that is right."
        return f"You guessed {self.words(self.value)}; it is {self.words(actual)}: {distance}."

    def _answer(self, answer: Value) -> Value:
        if self.options:
            return self._option(answer)
        try:
            number = answer if isinstance(answer, int) else float(answer)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"reveal: the guess is a number, so the answer has to be one, "
                             f"not {answer!r}.")  # fmt: skip
        return number

    def _option(self, typed: Value) -> str:
        options = self.options or ()
        if typed not in options:
            raise ValueError(f"{typed!r} is none of the options: {', '.join(options)}.")
        return str(typed)


def _units_beside(unit: str) -> dict[str, float]:
    """How much of `unit` one of each is that may be typed in its place: of "MB", a kB is 0.001."""
    found = re.fullmatch(r"([kMG]?)(B(?:/s)?)", unit)
    if found is None:
        return {}
    powers = {"": 0, "k": 1, "M": 2, "G": 3}
    return {one + found[2]: 1e3 ** (n - powers[found[1]]) for one, n in powers.items()}


def _number(typed: Value, unit: str) -> int | float:
    """What was typed, with its unit or without, as a number."""
    text = str(typed).strip()
    text = text.removesuffix(unit).strip() if unit else text
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    with suppress(ValueError):
        return number_from_words(str(typed), _units_beside(unit))
    aside = f" in {unit}" if unit else ""
    raise ValueError(
        f"{str(typed)!r} is not a number{aside}. Use digits and a point, as in 12, 0.5 or 4e6."
    )


def distance_words(guessed: float, actual: float, unit: str = "") -> str:
    """How far a guess is from the answer, in words; nothing where it is right.

    Right is what reads the same: an answer that is no whole number counts to four digits. Two
    quantities in percent lie so many points apart: percent of percent misleads.
    """
    if _number_words(guessed) == _number_words(actual):
        return ""
    if unit == "%":
        return _points(guessed - actual)
    if actual == 0 or guessed == 0:
        return f"off by {_number_words(abs(guessed - actual))}"
    ratio = guessed / actual
    if ratio < 0:
        return "the sign is wrong"
    if abs(ratio - 1) <= _CLOSE:
        percent = f"{abs(ratio - 1):.0%}".replace("%", " %")
        percent = "less than 1 %" if abs(ratio - 1) < 0.01 else percent
        return f"close, {percent} too {'high' if ratio > 1 else 'low'}"
    return _factor_words(ratio)


def _points(difference: float) -> str:
    """How many points too high or low."""
    side = "high" if difference > 0 else "low"
    points = _number_words(float(f"{abs(difference):.2g}"))
    return f"{points} point{'s' * (points != '1')} too {side}"


def _factor_words(ratio: float) -> str:
    """A guess that is so many times the answer, and not close to it."""
    side, factor = ("high", ratio) if ratio > 1 else ("low", 1 / ratio)
    if math.isclose(factor, 2, rel_tol=0.025):
        return "yours is twice as much" if ratio > 1 else "yours is half of it"
    if factor < 2:
        return f"{abs(ratio - 1):.0%} too {side}".replace("%", " %")
    aside = ""
    if any(math.isclose(factor, 1000**power, rel_tol=0.03) for power in (1, 2, 3)):
        aside = ", so look at the unit"
    return f"too {side} by a factor of {_number_words(float(f'{factor:.2g}'))}{aside}"


def _number_words(value: float) -> str:
    """A whole number with all its digits, others with four, in powers of ten only if tiny."""
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


# The form in which a learner commits to a guess: a field and a button, or a button per option ----


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
