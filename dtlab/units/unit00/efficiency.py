"""00/efficiency: compute the efficiency that a deadline requires, and strong and weak scaling."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number

_GPUS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16}
_FOR_EACH = "this is the speed-up. Divide it by the number of GPUs."


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
    "What a deadline requires",
    8,
    2,
    asked(
        _draw,
        [
            ("the job on one GPU", "{days} days"),
            ("due in", "{due} days"),
            ("a step on one GPU, measured", "{alone} ms"),
            ("a step with the same batch divided over eight GPUs", "{eight} ms"),
            ("a step of another job on one GPU", "{weak_alone} ms"),
            ("a step of that job, the same batch size on each of eight GPUs", "{weak_eight} ms"),
        ],
        number(
            "on_four",
            "the efficiency that four GPUs need to meet the deadline; it may exceed 100 %",
            "100 * needed / 4",
            "Which speed-up does the deadline require? Divide it by four.",
            {
                "100 * needed": _FOR_EACH,
                "100 * 4 / needed": "this is upside down.",
                "100 / needed": "this is the fraction of the time that remains, not the speed-up.",
            },
            unit="%",
        ),
        number(
            "on_eight",
            "the efficiency that eight GPUs need to meet the deadline",
            "100 * needed / 8",
            "The required speed-up is the same. Twice as many GPUs contribute to it.",
            {
                "100 * needed": _FOR_EACH,
                "100 * needed / 4": "this is for four GPUs.",
                "100 * (needed - 1) / 7": "this leaves the first GPU out.",
            },
            unit="%",
        ),
        choices(
            "in_time",
            "the numbers of GPUs that could meet the deadline at all",
            list(_GPUS),
            formula("possible"),
            "For which of them is the required efficiency at most 100 %?",
            {
                formula("set(gpus) - possible"): "this is upside down.",
                "two": "two GPUs are at most twice as fast.",
                "four": "look at four GPUs again: can they reach the required efficiency?",
                "sixteen": "on sixteen GPUs even a low efficiency is enough.",
            },
        ),
        number(
            "strong",
            "the measured efficiency on eight GPUs, with one batch divided over them",
            "100 * reached / 8",
            "How many times as fast is the step? Eight times would be 100 %.",
            {
                "100 / reached": "this is the fraction of the step's time that remains.",
                "100 * reached": _FOR_EACH,
                "100 - 100 / reached": "this is the time saved. How many times as fast is it?",
            },
            unit="%",
        ),
        number(
            "weak",
            "the efficiency of the other job on eight GPUs, with the same batch size on each",
            "100 * weak_alone / weak_eight",
            "Eight GPUs process eight times the samples. How long would that take ideally?",
            {
                "answer / 8": "the work is not divided here. Each GPU does as much as one alone.",
                "100 * weak_eight / weak_alone": "this is upside down.",
                "100 * weak_eight / weak_alone - 100": "this is by how much a step gets longer.",
            },
            unit="%",
        ),
        number(
            "serial",
            "by Amdahl's law, the part of a step on one GPU that does not get shorter on eight",
            "100 * serial",
            "T(8) = T(1) x (s + (1 - s)/8). Solve it for s.",
            {
                "100 - 100 * reached / 8": "this is 100 % minus the efficiency on eight GPUs.",
                "100 / reached": "this is T(8)/T(1). It also contains an eighth of the rest.",
                "100 - answer": "this is the part that does get shorter.",
            },
            unit="%",
        ),
        number(
            "most",
            "the upper limit of the speed-up with that serial part, for any number of GPUs",
            "1 / serial",
            "How long does a step take if the parallel part takes no time at all?",
            {
                "reached": "this is the speed-up on eight GPUs. What would a thousand reach?",
                "1 / (1 - serial)": "this assumes that the serial part is the one that shrinks.",
                "100 * serial": "this is the serial part itself.",
            },
        ),
        where={
            "needed": "days / due",  # speed-ups: required by the deadline, and reached on eight
            "reached": "alone / eight",
            "serial": "(8 / reached - 1) / 7",  # the serial part, by Amdahl's law
            "gpus": _GPUS,
            "possible": "{name for name in gpus if gpus[name] >= needed}",
        },
    ),
)
