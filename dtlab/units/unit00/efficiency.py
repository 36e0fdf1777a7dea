"""00/efficiency: a job of so many days that is due in a few."""

from __future__ import annotations

from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, choices, formula, number

_CARDS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16}
_FOR_EACH = "this is the speed-up. And for each card?"


def _draw(draw: Random) -> Values:
    jobs = ((5, 19), (5, 18), (5, 23), (4, 15), (4, 18), (3, 11), (3, 14), (6, 23))
    due, days = draw.choice(jobs)
    alone = draw.choice((400, 600, 800, 900))  # ms
    eight = round(alone / draw.uniform(4.2, 6.6))
    weak_alone = draw.choice((250, 320, 480))
    weak_eight = round(weak_alone * draw.uniform(1.12, 1.35))
    times = {"eight": eight, "weak_alone": weak_alone, "weak_eight": weak_eight}
    return {"days": days, "due": due, "alone": alone} | times


PART = Part(
    "00/efficiency",
    1,
    "Nineteen days in five",
    8,
    2,
    asked(
        _draw,
        [
            ("the job on one card", "{days} days"),
            ("due in", "{due} days"),
            ("a step on one card, measured", "{alone} ms"),
            ("the same batch shared out over eight cards", "{eight} ms for a step"),
            ("another job on one card", "{weak_alone} ms for a step"),
            ("that, with as large a batch on each of eight", "{weak_eight} ms for a step"),
        ],
        number(
            "on_four",
            "the efficiency that four cards would need to be in time; it may exceed 100 %",
            "100 * needed / 4",
            "How many times as fast does it have to be? That, as a part of what four can be.",
            {
                "100 * needed": _FOR_EACH,
                "100 * 4 / needed": "this is upside down.",
                "100 / needed": "this part of the time is left. How many times as fast is that?",
            },
            unit="%",
        ),
        number(
            "on_eight",
            "the efficiency that eight cards would need",
            "100 * needed / 8",
            "The speed-up is the same one. Twice as many cards share it.",
            {
                "100 * needed": _FOR_EACH,
                "100 * needed / 4": "this is for four.",
                "100 * (needed - 1) / 7": "this leaves the first card out.",
            },
            unit="%",
        ),
        choices(
            "in_time",
            "the numbers of cards that could be in time at all",
            list(_CARDS),
            formula("possible"),
            "With which of them is the efficiency that is needed no more than 100 %?",
            {
                formula("set(cards) - possible"): "this is upside down.",
                "two": "two cards are twice as fast at most.",
                "four": "look at four again: can its efficiency be had?",
                "sixteen": "efficiency may be low on sixteen, and still enough.",
            },
        ),
        number(
            "strong",
            "the efficiency on eight cards by the measured steps, one batch shared out",
            "100 * reached / 8",
            "How many times as fast is the step? Eight times would be 100 %.",
            {
                "100 / reached": "this is the time that is left of a step.",
                "100 * reached": _FOR_EACH,
                "100 - 100 / reached": "so much of the time is saved. How many times as fast?",
            },
            unit="%",
        ),
        number(
            "weak",
            "the efficiency of the other job, in which each card has as large a batch as one had",
            "100 * weak_alone / weak_eight",
            "Eight times the samples are done. In which time should they be?",
            {
                "answer / 8": "the work is not shared out here. Each does as much as one did.",
                "100 * weak_eight / weak_alone": "this is upside down.",
                "100 * weak_eight / weak_alone - 100": "so much longer a step takes.",
            },
            unit="%",
        ),
        number(
            "serial",
            "by Amdahl's law, the part of a step on one card that does not get shorter on eight",
            "100 * serial",
            "T(8) = T(1) x (s + (1 - s)/8). Solve it for s.",
            {
                "100 - 100 * reached / 8": "this is what is missing to 100 %, on eight cards.",
                "100 / reached": "this is what is left. An eighth of the rest is in it, too.",
                "100 - answer": "this is the part that does get shorter.",
            },
            unit="%",
        ),
        number(
            "most",
            "the speed-up that no number of cards goes beyond, with that part",
            "1 / serial",
            "What is left of a step when the other part takes no time at all?",
            {
                "reached": "this is on eight. What would a thousand bring?",
                "1 / (1 - serial)": "this is as if the other part did not get shorter.",
                "100 * serial": "this is the part itself.",
            },
        ),
        where={
            "needed": "days / due",  # speed-ups: what the deadline asks for, and on eight cards
            "reached": "alone / eight",
            "serial": "(8 / reached - 1) / 7",  # by Amdahl's law, the part that is not shared out
            "cards": _CARDS,
            "possible": "{name for name in cards if cards[name] >= needed}",
        },
    ),
)
