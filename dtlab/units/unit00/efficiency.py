"""The values of 00/efficiency: a job of so many days that is due in a few."""

from __future__ import annotations

from functools import partial
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_CARDS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16}


def _draw(draw: Random) -> Values:
    due, days = draw.choice(
        ((5, 19), (5, 18), (5, 23), (4, 15), (4, 18), (3, 11), (3, 14), (6, 23))
    )
    alone = draw.choice((400, 600, 800, 900))  # ms
    reached = draw.uniform(4.2, 6.6)  # speed-up on eight cards
    return {
        "days": days,
        "due": due,
        "alone": alone,
        "eight": round(alone / reached),
        "weak_alone": (weak := draw.choice((250, 320, 480))),
        "weak_eight": round(weak * draw.uniform(1.12, 1.35)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("the job on one card", f"{given['days']} days"),
        ("due in", f"{given['due']} days"),
        ("a step on one card, measured", f"{given['alone']} ms"),
        ("the same batch shared out over eight cards", f"{given['eight']} ms for a step"),
        ("another job on one card", f"{given['weak_alone']} ms for a step"),
        ("that, with as large a batch on each of eight", f"{given['weak_eight']} ms for a step"),
    ]


def _speedup(given: Values) -> float:
    """What the deadline asks for."""
    return float(given["days"] / given["due"])


def _reached(given: Values) -> float:
    """What was measured on eight."""
    return float(given["alone"] / given["eight"])


def _serial(given: Values) -> float:
    """By Amdahl's law, the part that is not shared out."""
    return (8 / _reached(given) - 1) / 7


def _possible(given: Values) -> frozenset[str]:
    return frozenset(name for name, cards in _CARDS.items() if cards >= _speedup(given))


_percent = partial(number, unit="%")

EFFICIENCY = Questions(
    _draw,
    _rows,
    (
        _percent(
            "on_four",
            "the efficiency that four cards would need to be in time; more than 100 % is an "
            "answer too",
            lambda given: 100 * _speedup(given) / 4,
            "How many times as fast does it have to be? That, as a part of what four can be.",
            (lambda given: 100 * _speedup(given), "this is the speed-up. And for each card?"),
            (lambda given: 400 / _speedup(given), "this is upside down."),
            (
                lambda given: 100 * given["due"] / given["days"],
                "this part of the time is left. How many times as fast is that, on four cards?",
            ),
        ),
        _percent(
            "on_eight",
            "the efficiency that eight cards would need",
            lambda given: 100 * _speedup(given) / 8,
            "The speed-up is the same one. Twice as many cards share it.",
            (lambda given: 100 * _speedup(given), "this is the speed-up. And for each card?"),
            (lambda given: 100 * _speedup(given) / 4, "this is for four."),
            (
                lambda given: 100 * (_speedup(given) - 1) / 7,
                "this leaves the first card out. All eight are put to use in part.",
            ),
        ),
        Question(
            "in_time",
            1,
            "the numbers of cards that could be in time at all",
            Choices(
                dict.fromkeys(_CARDS, ""),
                _possible,
                (
                    Mistake(
                        lambda given: frozenset(_CARDS) - _possible(given),
                        "this is upside down: with these, cards would need more than 100 %.",
                    ),
                    Mistake("two", "two cards are twice as fast at most."),
                    Mistake("four", "look at four again: can its efficiency be had?"),
                    Mistake("sixteen", "efficiency may be low on sixteen, and still enough."),
                ),
                "With which of them is the efficiency that is needed no more than 100 %?",
            ),
        ),
        _percent(
            "strong",
            "the efficiency on eight cards by the measured steps, one batch shared out",
            lambda given: 100 * _reached(given) / 8,
            "How many times as fast is the step? Eight times would be 100 %.",
            (lambda given: 100 / _reached(given), "this is the time that is left of a step."),
            (lambda given: 100 * _reached(given), "this is the speed-up. And for each card?"),
            (
                lambda given: 100 * (1 - 1 / _reached(given)),
                "so much of the time is saved. How many times as fast is it?",
            ),
        ),
        _percent(
            "weak",
            "the efficiency of the other job, in which each card has as large a batch as one had",
            lambda given: 100 * given["weak_alone"] / given["weak_eight"],
            "Eight times the samples are done. In which time should they be?",
            (
                lambda given: 100 * given["weak_alone"] / given["weak_eight"] / 8,
                "this would be so if all eight together did the work of one. Each does as much "
                "as one did.",
            ),
            (
                lambda given: 100 * given["weak_eight"] / given["weak_alone"],
                "this is upside down.",
            ),
            (
                lambda given: 100 * (given["weak_eight"] / given["weak_alone"] - 1),
                "so much longer a step takes. How much of what could be done is done?",
            ),
        ),
        _percent(
            "serial",
            "of a step on one card, the part that does not get shorter, if that alone keeps eight "
            "cards from 100 % (Amdahl's law)",
            lambda given: 100 * _serial(given),
            "T(8) = T(1) x (s + (1 - s)/8). Solve it for s.",
            (
                lambda given: 100 * (1 - _reached(given) / 8),
                "this is what is missing to 100 %, on eight cards. And of a step on one?",
            ),
            (
                lambda given: 100 / _reached(given),
                "this is all that is left of the step. An eighth of the rest is in it, too.",
            ),
            (
                lambda given: 100 * (1 - _serial(given)),
                "this is the part that does get shorter.",
            ),
        ),
        number(
            "most",
            "the speed-up that no number of cards goes beyond, with that part",
            lambda given: 1 / _serial(given),
            "What is left of a step when the other part takes no time at all?",
            (_reached, "this is on eight. What would a thousand bring?"),
            (
                lambda given: 1 / (1 - _serial(given)),
                "this is as if the other part did not get shorter.",
            ),
            (lambda given: 100 * _serial(given), "this is the part itself."),
        ),
    ),
)

PART = Part("00/efficiency", 1, "Nineteen days in five", 8, 2, EFFICIENCY)
