"""The values of 04/scaler_steps: a dynamic loss scaler, followed by hand.

The rules are those of `torch.amp.GradScaler`.
"""

from __future__ import annotations

from functools import partial
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions, Values
from dtlab.grading.questions.numbers import Value, number

__all__ = ["PART"]

_STEPS, _OVERFLOWS = 10, 3
_LARGEST = 15  # fp16 ends just below 2^16


def _draw(draw: Random) -> Values:
    overflows = sorted(draw.sample(range(2, _STEPS), _OVERFLOWS))
    return {
        "start": draw.randint(11, 16),
        "interval": draw.choice((2, 3)),
        "overflows": [step in overflows for step in range(1, _STEPS + 1)],
        "gradient": draw.randint(2, 7),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    steps = ", ".join("inf" if each else "fine" for each in given["overflows"])
    return [
        ("scale in step 1", f"2^{given['start']}"),
        ("growth_interval", str(given["interval"])),
        ("growth_factor, backoff_factor", "2 and 0.5"),
        (f"gradients of steps 1 to {_STEPS}", steps),
        ("largest gradient later on", f"2^-{given['gradient']} before scaling, in every step"),
    ]


def _followed(
    given: Values,
    *,
    grows: bool = True,
    overflow_clears: bool = True,
    growth_clears: bool = True,
    late: int = 0,
) -> list[int]:
    """Exponents of the scale before step 1, before step 2, ... and after the last one.

    The keywords leave out one of the rules, or make growth wait for some more good steps.
    """
    scale, good = int(given["start"]), 0
    scales = [scale]
    for overflow in given["overflows"]:
        if overflow:
            scale, good = scale - 1, 0 if overflow_clears else good
        else:
            good += 1
            if grows and good >= given["interval"] + late:
                scale, good = scale + 1, 0 if growth_clears else good
        scales.append(scale)
    return scales


def _during(given: Values) -> list[int]:
    return _followed(given)[:-1]


def _after(given: Values) -> list[int]:
    return _followed(given)[1:]


def _by_other_rules(**rules: bool | int) -> Value:
    return lambda given: _followed(given, **rules)[:-1]  # type: ignore[arg-type]


def _share(of: int) -> Value:
    """One in so many steps more than `growth_interval`, in per cent."""
    return lambda given: 100 / (given["interval"] + of)


_exponent = partial(number, exact=True)

SCALER_STEPS = Questions(
    _draw,
    _rows,
    (
        _exponent(
            "scales",
            f"the scale of the loss in each of the steps 1 to {_STEPS}, as a list of "
            "exponents: 14 stands for 2^14",
            _during,
            "Keep two numbers: the scale, and how many good steps there were since it changed.",
            (
                _after,
                "these are the scales after each step. Asked for are those in it, which begin "
                "with the one that is given.",
            ),
            (
                lambda given: [2**exponent for exponent in _during(given)],
                "these are the scales. Write their exponents.",
            ),
            (
                _by_other_rules(overflow_clears=False),
                "here good steps from before an overflow count on after it. It sets the count to "
                "0.",
            ),
            (
                _by_other_rules(growth_clears=False),
                "here the scale goes on growing with each good step. Growth sets the count to 0.",
            ),
            (
                _by_other_rules(late=1),
                "here the scale grows one good step late. It does so at the end of the last good "
                "step of `growth_interval`.",
            ),
            (
                _by_other_rules(grows=False),
                "here the scale never grows. What do good steps in a row do?",
            ),
            points=2,
        ),
        number(
            "updates",
            f"in how many of these {_STEPS} steps the weights change",
            lambda given: given["overflows"].count(False),
            "What does `scaler.step(optimizer)` do where a gradient is inf?",
            (lambda given: _STEPS, "an update with inf would ruin the weights."),
            (
                lambda given: given["overflows"].count(True),
                "these are the steps in which gradients overflow.",
            ),
            exact=True,
        ),
        _exponent(
            "settles",
            "the largest scale, again as an exponent, at which the largest gradient of the later "
            "steps does not overflow fp16",
            lambda given: _LARGEST + given["gradient"],
            "The largest number of fp16 is 65504. Which powers of two does it hold?",
            (
                lambda given: 2 ** (_LARGEST + given["gradient"]),
                "this is the scale. Write its exponent.",
            ),
            (
                lambda given: _LARGEST + 1 + given["gradient"],
                "with this one, the gradient is 2^16 = 65536. Is that a number of fp16?",
            ),
            (
                lambda given: _LARGEST - given["gradient"],
                "the gradient is smaller than 1: the scale may be larger than fp16's numbers.",
            ),
            (
                lambda given: _LARGEST,
                "this is the exponent of the gradient after scaling. And that of the scale?",
            ),
        ),
        number(
            "skipped",
            "from then on in the long run, the share of steps that are skipped because the scaler "
            "tries the next larger scale",
            _share(1),
            "Follow it from one overflow to the next. How many steps is that?",
            (
                _share(0),
                "this counts the good steps between two overflows. The step that overflows "
                "counts, too.",
            ),
            (_share(2), "how many good steps are there between two overflows?"),
            (lambda given: 50.0, "so it is if the scale grows after each good step."),
            (lambda given: 0.0, "the scaler does not know where fp16 ends. It tries again."),
            unit="%",
        ),
    ),
)

PART = Part("04/scaler_steps", 1, "A loss scaler, step by step", 5, 2, SCALER_STEPS)
