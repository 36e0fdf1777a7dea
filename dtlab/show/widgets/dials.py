"""Dials: controls in which a learner sets a number, in a field or on a slider.

    Size of the tensor [ 7 MB      ]  ──────o─────

The field is a native input of the browser with a label, so a screen reader reads its name and its
value. A slider of ipywidgets exposes only the position of its handle. Therefore the field comes
first, and the slider is a shortcut that stops at a few round values.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtlab.show.words import (
    BYTES,
    DURATIONS,
    SECONDS,
    byte_words,
    duration_words,
    number_from_words,
    short_words,
    time_words,
)

_NAME: Final = "12em"  # width of the name of a control
# Shown over the content below the field, like a browser's own message, so that nothing moves.
_COMPLAINT: Final = (
    "position: absolute; z-index: 5; max-width: 34em; padding: 2px 8px; line-height: 1.4; "
    "white-space: normal; border: 1px solid var(--jp-error-color1, #d32f2f); border-radius: 3px; "
    "background: var(--jp-layout-color1, #fff); color: var(--jp-ui-font-color1, #111)"
)

__all__ = [
    "Dial", "Scale", "box", "bytes_scale", "choice", "choose", "count_scale", "duration_scale",
    "rate_scale", "seconds_scale",
]  # fmt: skip

Number = int | float


@dataclass(frozen=True)
class Scale:
    """The round values of a dial, in order, with functions to format and to parse a value."""

    values: Sequence[Number]
    write: Callable[[Any], str]
    read: Callable[[str], Number]


def bytes_scale(values: Sequence[float]) -> Scale:
    """Return a scale of numbers of bytes, formatted and parsed in decimal units."""
    return Scale(values, _write_bytes, _reader(BYTES))


def rate_scale(values: Sequence[float]) -> Scale:
    """Return a scale of bytes per second."""
    rates = {f"{unit}/s": factor for unit, factor in BYTES.items()}
    return Scale(values, lambda each: f"{_write_bytes(each)}/s", _reader(rates))


def seconds_scale(values: Sequence[float]) -> Scale:
    """Return a scale of times in seconds."""
    return Scale(values, lambda each: short_words(time_words(each)), _reader(SECONDS))


def duration_scale(values: Sequence[float]) -> Scale:
    """Return a scale of times from seconds to years."""
    return Scale(values, duration_words, _reader(DURATIONS))


def count_scale(values: Sequence[int]) -> Scale:
    """Return a scale of whole numbers."""
    return Scale(values, str, _read_count)


def _write_bytes(count: float) -> str:
    return short_words(byte_words(count))


def _reader(units: Mapping[str, float]) -> Callable[[str], float]:
    return functools.partial(number_from_words, units=units)


def _read_count(words: str) -> int:
    number = number_from_words(words, {})
    if not number.is_integer():
        raise ValueError(f"{words.strip()!r} is not a whole number.")
    return int(number)


def box(name: str, value: bool = True) -> Any:
    """Build a checkbox with its name."""
    import ipywidgets as widgets

    layout = widgets.Layout(width="auto", margin="2px 1em 2px 0")
    return widgets.Checkbox(value, description=name, indent=False, layout=layout)


def choice(name: str, options: Sequence[str] | Mapping[str, Any]) -> Any:
    """Build a drop-down list with its name; the first option is chosen at the start.

    A mapping gives the value of each option by the words that the list shows.
    """
    import ipywidgets as widgets

    shown = options.items() if isinstance(options, Mapping) else options
    return widgets.Dropdown(
        options=list(shown), description=name, style={"description_width": _NAME},
        layout=widgets.Layout(width=f"calc({_NAME} + 17em)"),
    )  # fmt: skip


def choose(control: Any, value: str) -> None:
    """Choose an option of a drop-down list. Raises: ValueError if it has no such option."""
    values = [each if isinstance(each, str) else each[1] for each in control.options]
    if value not in values:
        words = f"{control.description} must be one of {', '.join(values)}, not {value!r}."
        raise ValueError(words)
    control.value = value


class Dial:
    """A field and a slider for one number; `value` is its current value, within its scale."""

    def __init__(self, name: str, scale: Scale, start: Number, width: str = _NAME) -> None:
        """`width` is the width of the name, in CSS units."""
        import ipywidgets as widgets

        self._name, self._scale, self._value = name, scale, start
        self._observers: list[Callable[[Any], None]] = []
        self._settling = False
        layout = widgets.Layout(width=f"calc({width} + 8em)")
        self.field = widgets.Text(
            scale.write(start), description=name, continuous_update=False,
            style={"description_width": width}, layout=layout,
        )  # fmt: skip
        options = [(scale.write(each), each) for each in scale.values]
        self.slider = widgets.SelectionSlider(
            options=options, value=self._nearest(start), readout=False,
            layout=widgets.Layout(width="11.5em"),
        )  # fmt: skip
        self.complaint = widgets.HTML(
            layout=widgets.Layout(height="0", min_height="0", margin="0", overflow="visible")
        )
        self.field.observe(self._typed, names="value")
        self.slider.observe(self._moved, names="value")
        # The handle of a slider reaches beyond the slider's end. Without "visible", a box beyond
        # which the handle reaches gets scrollbars.
        visible = widgets.Layout(overflow="visible")
        in_row = widgets.Layout(align_items="center", overflow="visible")
        row = widgets.HBox([self.field, self.slider], layout=in_row)
        self.widget = widgets.VBox([row, self.complaint], layout=visible)

    @property
    def value(self) -> Number:
        """The current value."""
        return self._value

    @value.setter
    def value(self, value: Number) -> None:
        self.complaint.value = ""
        changed, self._value = value != self._value, value
        self._settling = True  # field and slider follow the value now; they must not set it
        try:
            self.field.value = self._scale.write(value)
            self.slider.value = self._nearest(value)
        finally:
            self._settling = False
        for callback in self._observers if changed else ():
            callback(None)

    def observe(self, handler: Callable[[Any], None], names: str = "value") -> None:
        """Register `handler`, which is called after each change, as ipywidgets does."""
        self._observers.append(handler)

    def _nearest(self, value: Number) -> Number:
        return min(self._scale.values, key=lambda each: abs(each - value))

    def _moved(self, change: Any) -> None:
        if not self._settling:
            self.value = change["new"]

    def _typed(self, change: Any) -> None:
        """Set the value from the input, or show below the field what is wrong with it."""
        if self._settling:
            return
        try:
            self.value = self._checked(self._scale.read(change["new"]))
        except ValueError as error:
            words = html.escape(str(error))
            self.complaint.value = f'<span role="alert" style="{_COMPLAINT}">{words}</span>'

    def _checked(self, value: Number) -> Number:
        low, high = self._scale.values[0], self._scale.values[-1]
        if not low <= value <= high:
            write = self._scale.write
            raise ValueError(
                f"{write(value)} is out of range: {self._name.lower()} goes from {write(low)} "
                f"to {write(high)}."
            )
        return value
