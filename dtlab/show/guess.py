"""`dtlab.guess`: a form that records a learner's prediction before the answer is shown.

    sent = guess("How many MB does rank 0 send?", unit="MB")     a field appears; the cell ends
    ...
    sent.reveal(48)          You guessed 16 MB; it is 48 MB: too low by a factor of 3.
    sent.reveal(51, formula=48)           measured; a busy machine's value is not the answer

A cell never waits for the learner. If no guess was made, JupyterLab hides what the cell prints and
draws, and `reveal` shows "Predict first"; when the guess arrives, output and answer appear.
Without a front end `reveal` shows the answer at once. A cell that runs again keeps its guess,
because `guess` finds the earlier `Guess` object among the kernel's variables. `calibration` sums
up the guesses of a notebook.
"""

from __future__ import annotations

import html
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dtlab.predict.units import counted
from dtlab.show.arguments import checked
from dtlab.show.guess_form import form, on_display, then_next_cell
from dtlab.show.notebook import (
    Kept,
    has_front_end,
    in_a_kernel,
    kernel_variables,
    show_bundle,
)
from dtlab.show.remeasure import far_off, load_in_words
from dtlab.show.words import number_from_words
from dtlab.stored import append, stored

__all__ = ["Guess", "calibration", "distance_words", "guess"]

Value = int | float | str

_CLOSE: Final = 0.1
_GREEN, _GREY = "#1b7f4b", "#7a8288"  # both are visible on a light and on a dark page
# While a closed `dtlab-waits` is among the outputs of a cell, JupyterLab shows only the request
# for a prediction, errors, and plain text: that is the type of progress notices, not of prints.
_HIDING: Final = """<style>
.jp-OutputArea:has(> .jp-OutputArea-child .dtlab-waits:not([open])) > .jp-OutputArea-child:not(
  :has(.dtlab-waits, .dtlab-predict, [data-mime-type*="error"], [data-mime-type="text/plain"])
) {display: none}
</style>"""


@checked
def guess(
    question: str,
    unit: str = "",
    *,
    options: Sequence[str] | None = None,
    value: Value | None = None,
) -> Guess:
    """Ask for a number in `unit`, or for one of `options`, without waiting for the answer.

    In a notebook a field, or a button for each option, appears below the cell. The learner's input
    is stored in `.value` of the returned `Guess`, and `.reveal(answer)` in a later cell compares
    the two. `value` sets the guess in code. If a variable of the notebook already holds a `Guess`
    with the same question, that object is returned, with its value. Raises `ValueError` if `value`
    is not a number, or not one of the options.
    """
    fresh = Guess(question, unit, options)
    earlier = (
        variable
        for variable in kernel_variables()
        if isinstance(variable, Guess) and variable.asks_as(fresh)
    )
    result = next(earlier, fresh)
    if value is not None:
        result.commit(value)
        show_bundle({"text/plain": f"{question} Your guess: {result.words(result.value)}."})
    elif in_a_kernel():
        _hide_answers_of_cells()
        result.keep()
        show_bundle({**form(result)._repr_mimebundle_(), "text/plain": result.asking})
    else:
        show_bundle({"text/plain": result.asking})
    return result


class Guess:
    """A question and the learner's guess; `value` is None until a guess is made."""

    value: Value | None

    def __init__(self, question: str, unit: str, options: Sequence[str] | None) -> None:
        if options is not None and len(options) < 2:
            raise ValueError(f"guess: options={options!r}. Give at least two options.")
        self.question = question
        self.unit = unit
        self.options = None if options is None else tuple(options)
        self.value = None
        self.revealed = False
        self.hidden = 0  # times that `reveal` showed "Predict first"
        self.answer: Value | None = None
        self._aside: Callable[[], str] = lambda: ""  # chooses the answer when the guess is known
        self._kept: Kept | None = None
        self.on_commit: list[Callable[[], None]] = []
        self.on_reveal: list[Callable[[], None]] = []

    @property
    def asking(self) -> str:
        """The question as one line of text."""
        choice = f" ({' / '.join(self.options)})" if self.options else ""
        return f"Guess: {self.question}{choice}"

    def asks_as(self, other: Guess) -> bool:
        """Return whether both ask the same question, in the same unit, with the same options."""
        question = (self.question, self.unit, self.options)
        return question == (other.question, other.unit, other.options)

    def commit(self, typed: Value) -> None:
        """Set the guess, replacing an earlier one.

        Raises `ValueError`, and leaves no guess, if `typed` is neither a number nor an option.
        """
        self.value = None
        try:
            self.value = self._option(typed) if self.options else _number(typed, self.unit)
        finally:
            if self._kept is not None:
                self._kept.update(*self._as_text())
        for callback in list(self.on_commit):
            callback()

    def keep(self) -> None:
        """Show the question and the guess as text that stays readable after the kernel ends."""
        self._kept = Kept(*self._as_text())

    def _as_text(self) -> tuple[str, str]:
        guessed = self.value is not None
        line = f"Your guess: {self.words(self.value)}." if guessed else "No guess was made."
        page = f"<b>Guess.</b> {html.escape(self.question)}<br>{html.escape(line)}"
        return page, f"{self.asking} {line}"

    def reveal(
        self,
        answer: Value,
        note: str | Mapping[str, str] = "",
        *,
        formula: Value | None = None,
        allowed: float | None = None,
    ) -> None:
        """Show the answer, how far off the guess was, and then `note`.

        Without a guess, JupyterLab shows "Predict first" instead, until the guess arrives or the
        learner clicks "I don't know"; the cell does not wait. Where there is no front end, as in a
        script, the answer is shown at once.

        `answer` is a number in the guess's unit, or one of its options. `note` may map options to
        notes: then the note on the chosen option is shown, or the note on the answer if none was
        chosen. After this call the guess can no longer be changed in its cell.

        `formula` is what an emulated measurement should give. The guess is compared with the
        nearer of the two, and both are shown. If they are further apart than `far_off` allows,
        because the machine is busy, only the formula counts, and a sentence says what was
        measured. Raises `ValueError` for an answer or a formula that is neither a number nor one
        of the options.
        """
        self.answer = measured = self._answer(answer)
        self._aside = lambda: ""
        if formula is not None:
            expected = self._answer(formula)
            self._aside = lambda: self._judge_by(measured, expected, allowed)
        if self.value is None and has_front_end():
            self._hide(note)
            return
        page, text = self._verdict(note)
        show_bundle({"text/plain": text, "text/html": page})
        if self.value is not None:
            self._freeze()

    def _judge_by(self, measured: Value, formula: Value, allowed: float | None) -> str:
        """Choose which of the two is the answer; return a sentence about the other one.

        It is what was measured, if that is near the formula and no further from the guess.
        """
        if isinstance(measured, str) or isinstance(formula, str):
            disturbed = measured != formula
        else:
            disturbed = far_off(measured, formula, self.unit, allowed)
        if disturbed:
            self.answer = formula
            return (f"This is the formula's answer: measured was {self.words(measured)}, on a "
                    f"machine that is too busy for it ({load_in_words()}).")  # fmt: skip
        self.answer = min(measured, formula, key=self._distance)
        if measured == formula:
            return ""
        if self.answer == formula:
            return f"This is by the formula; measured was {self.words(measured)}."
        return f"By the formula it is {self.words(formula)}."

    def _distance(self, answer: Value) -> float:
        """How far the guess is from an answer; 0 if there is no number to compare."""
        if isinstance(self.value, (int, float)) and isinstance(answer, (int, float)):
            return abs(self.value - answer)
        return 0.0

    def _freeze(self) -> None:
        self.revealed = True
        self._store()
        for callback in list(self.on_reveal):
            callback()

    def _store(self) -> None:
        """Store the question and whether the guess was right, once: `dtlab review` asks again."""
        lesson = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
        with suppress(OSError, RuntimeError):  # no home folder, disk full, no permission
            if (self.question, lesson) not in stored("guess", "lesson", str):
                append(
                    {
                        "guess": self.question, "lesson": lesson, "unit": self.unit,
                        "options": self.options, "answer": self.answer,
                        "right": self._about_right(), "time": time.time(),
                    }
                )  # fmt: skip

    def _about_right(self) -> bool:
        """Whether the right option was chosen, or a number within a factor of 2."""
        if isinstance(self.value, str) or isinstance(self.answer, str) or not self.answer:
            return self.value == self.answer
        return self.value is not None and 0.5 <= self.value / self.answer <= 2

    def _hide(self, note: str | Mapping[str, str]) -> None:
        """Show "Predict first", and the answer in its place as soon as there is a guess."""
        import ipywidgets as widgets

        asking = f"Predict first: {self.question}"
        style = f"border-left:4px solid {_GREY};padding:.3em .8em;color:inherit"
        waiting = (
            f'<div style="{style}"><b>Predict first.</b> Enter your prediction in the cell '
            f"above; the answer appears here.<br>{html.escape(self.question)}</div>"
        )
        kept, place = Kept(waiting, asking), widgets.HTML(waiting + on_display("button"))
        button = widgets.Button(description="I don't know", tooltip="Show the answer")
        box = widgets.VBox([place, button])
        box.add_class("dtlab-predict")
        self.hidden += 1

        def show(then: str = "") -> None:
            page, text = self._verdict(note)
            place.value = page + then
            box.children = [place]
            kept.update(page, text)
            self._freeze()

        def committed() -> None:
            if self.value is not None:
                self.on_commit.remove(committed)
                show()

        def clicked(_: Any) -> None:
            if committed in self.on_commit:
                self.on_commit.remove(committed)
                show(then_next_cell("button", run=False))

        self.on_commit.append(committed)
        button.on_click(clicked)
        show_bundle({**box._repr_mimebundle_(), "text/plain": asking})

    def _verdict(self, note: str | Mapping[str, str]) -> tuple[str, str]:
        """The answer as HTML and as text."""
        aside = self._aside()
        words = self._comparison()
        if not isinstance(note, str):
            note = note.get(str(self.answer if self.value is None else self.value), "")
        note = f"{aside} {note}".strip()
        colour = _GREEN if words.endswith("that is right.") else _GREY
        style = f"border-left:4px solid {colour};padding:.3em .8em;color:inherit"
        page = f'<div style="{style}"><b>{html.escape(words)}</b> {html.escape(note)}</div>'
        return page, f"{words} {note}".strip()

    def words(self, value: Value | None) -> str:
        """Format a guess or an answer with its unit; an option in quotes.

        Without quotes, "You chose right" would read as a verdict where "right" is an option.
        """
        if value is None:
            return "nothing"
        number = _quoted(value) if isinstance(value, str) else _number_words(value)
        return f"{number} {self.unit}".strip()

    def __repr__(self) -> str:
        guess = "no guess yet" if self.value is None else self.words(self.value)
        return f"<{self.question} {guess}>"

    def _comparison(self) -> str:
        """Return one sentence that says how far off the guess was."""
        assert self.answer is not None
        right = self.words(self.answer)
        if self.value is None:
            return f"No guess was made. It is {right}."
        mine = self.words(self.value)
        if isinstance(self.value, str) or isinstance(self.answer, str):
            if self.value == self.answer:
                return f"You chose {right}, and that is right."
            return f"You chose {mine}; it is {right}."
        distance = distance_words(self.value, self.answer, self.unit)
        if not distance:
            return f"You guessed {mine}, and that is right."
        return f"You guessed {mine}; it is {right}: {distance}."

    def _answer(self, answer: Value) -> Value:
        if self.options:
            return self._option(answer)
        try:
            number = answer if isinstance(answer, int) else float(answer)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"reveal: the guess is a number, so the answer must be a number, not "
                             f"{answer!r}.")  # fmt: skip
        return number

    def _option(self, typed: Value) -> str:
        options = self.options or ()
        if typed not in options:
            listed = ", ".join(map(_quoted, options))
            raise ValueError(f"{typed!r} is none of the options: {listed}.")
        return str(typed)


def _quoted(option: str) -> str:
    return f"“{option}”"


def _hide_answers_of_cells() -> None:
    """From now on, hide the output of each cell that reveals a guess that was not made yet.

    JupyterLab hides it from the cell's first output on, until the guess arrives or the learner
    unfolds the remark. Other front ends show it.
    """
    from IPython import get_ipython

    events = get_ipython().events
    if "JPY_SESSION_NAME" in os.environ and _before_a_cell not in events.callbacks["pre_run_cell"]:
        events.register("pre_run_cell", _before_a_cell)


def _before_a_cell(info: Any) -> None:
    from IPython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    named = map(shell.user_ns.get, {*re.findall(r"\b(\w+)\.reveal\(", info.raw_cell or "")})
    asked = [each for each in named if isinstance(each, Guess) and each.value is None]
    if not asked:
        return
    remark = "The output of this cell appears with your prediction. Or unfold it here."
    page = f'<details class="dtlab-waits"><summary>{remark}</summary></details>{_HIDING}'
    handle = display({"text/html": page, "text/plain": remark}, raw=True, display_id=True)
    times = [each.hidden for each in asked]
    open_ones: list[Guess] = []  # those that this cell would reveal, once it has ended

    def appear() -> None:
        if all(each.revealed for each in open_ones):
            handle.update({"text/html": "", "text/plain": ""}, raw=True)
            for each in open_ones:
                each.on_reveal.remove(appear)
            open_ones.clear()

    def ended(_: Any) -> None:
        shell.events.unregister("post_run_cell", ended)
        for each, before in zip(asked, times, strict=True):
            if each.hidden > before:
                each.revealed = False
                each.on_reveal.append(appear)
                open_ones.append(each)
        appear()  # if the cell has revealed nothing, because of an error

    shell.events.register("post_run_cell", ended)


def calibration() -> None:
    """Show how many guesses of this notebook were too low, within a factor of 2, or too high.

    Of guesses that are choices, show how many were right.
    """
    guesses = [each for each in kernel_variables() if isinstance(each, Guess)]
    made = [each for each in guesses if each.value is not None and each.answer is not None]
    ratios = [
        each.value / each.answer
        for each in made
        if isinstance(each.value, (int, float)) and isinstance(each.answer, (int, float))
        if each.answer
    ]
    chosen = [each for each in made if isinstance(each.value, str)]
    counts = {
        "less than half": sum(ratio < 0.5 for ratio in ratios),
        "within a factor of 2": sum(0.5 <= ratio <= 2 for ratio in ratios),
        "more than twice": sum(ratio > 2 for ratio in ratios),
    }
    right = sum(each.value == each.answer for each in chosen)
    lines = [f"You made {len(made)} of {len(guesses)} predictions."]
    if zeros := len(made) - len(ratios) - len(chosen):
        lines.append(f"Not compared: {counted(zeros, 'prediction')} whose answer was 0.")
    if ratios:
        lines += [f"{words:21} {'#' * number} {number}" for words, number in counts.items()]
        low, high = counts["less than half"], counts["more than twice"]
        if abs(low - high) >= max(3, len(ratios) / 3):
            lines.append(f"You tend to guess too {'low' if low > high else 'high'}.")
    if chosen:
        lines.append(f"You were right in {right} of {counted(len(chosen), 'choice')}.")
    text = "\n".join(lines)
    page = f'<pre style="color:inherit">{html.escape(text)}</pre>'
    show_bundle({"text/plain": text, "text/html": page})


def _units_beside(unit: str) -> dict[str, float]:
    """Return the units accepted besides `unit`, as multiples of it: for "MB", "kB" is 0.001."""
    match = re.fullmatch(r"([kMG]?)(B(?:/s)?)", unit)
    if match is None:
        return {}
    powers = {"": 0, "k": 1, "M": 2, "G": 3}
    return {prefix + match[2]: 1e3 ** (n - powers[match[1]]) for prefix, n in powers.items()}


def _number(typed: Value, unit: str) -> int | float:
    """Parse a number that was typed with or without its unit."""
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
    """Say how far a guess is from the answer; return an empty string if the guess is right.

    A guess is right if it is displayed like the answer: numbers that are not whole are compared to
    four digits. For quantities in percent the difference is given in percentage points, because a
    percentage of a percentage misleads.
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
    """Say by how many percentage points a guess is too high or too low."""
    side = "high" if difference > 0 else "low"
    points = _number_words(float(f"{abs(difference):.2g}"))
    return f"{points} point{'s' * (points != '1')} too {side}"


def _factor_words(ratio: float) -> str:
    """Describe a guess that is `ratio` times the answer, and not close to it."""
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
    """Format a whole number with all its digits, others with four; an exponent only if tiny."""
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
