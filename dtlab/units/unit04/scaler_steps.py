"""04/scaler_steps: follow a dynamic loss scaler by hand.

The rules are those of `torch.amp.GradScaler`.
"""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    overflows = draw.sample(range(2, 10), 3)
    return {
        "start": draw.randint(11, 16),
        "interval": draw.choice((2, 3)),
        "overflows": [step in overflows for step in range(1, 11)],
        "gradient": draw.randint(2, 7),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    steps = ", ".join("inf" if each else "fine" for each in given["overflows"])
    return [
        ("scale in step 1", f"2^{given['start']}"),
        ("growth_interval", str(given["interval"])),
        ("growth_factor, backoff_factor", "2 and 0.5"),
        ("gradients of steps 1 to 10", steps),
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

    The keywords leave out one of the rules, or delay growth by `late` good steps.
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


_QUESTIONS = asked(
    _draw,
    _rows,
    number(
        "scales",
        "the scale of the loss in each of the steps 1 to 10, as a list of exponents: 14 "
        "stands for 2^14",
        "followed(given)[:-1]",
        "Keep two numbers: the scale, and the number of good steps since it changed.",
        {
            "followed(given)[1:]": "these are the scales after each step, not those in it.",
            "[2**exponent for exponent in answer]": "write the exponents of these.",
            "followed(given, overflow_clears=False)[:-1]": "here good steps before an overflow "
            "still count after it. An overflow sets the count to 0.",
            "followed(given, growth_clears=False)[:-1]": "here the scale keeps growing with "
            "each good step. Growth sets the count to 0.",
            "followed(given, late=1)[:-1]": "here the scale grows one good step late. It grows "
            "at the end of the last good step of `growth_interval`.",
            "followed(given, grows=False)[:-1]": "here the scale never grows.",
        },
        points=2,
        exact=True,
    ),
    number(
        "updates",
        "in how many of these 10 steps do the weights change",
        "overflows.count(False)",
        "What does `scaler.step(optimizer)` do if a gradient is inf?",
        {
            "10": "an update with inf would ruin the weights.",
            "overflows.count(True)": "these are the steps in which gradients overflow.",
        },
        exact=True,
    ),
    number(
        "settles",
        "the largest scale, again as an exponent, at which the largest gradient of the later "
        "steps does not overflow fp16",
        "15 + gradient",
        "The largest number of fp16 is 65504. Which powers of two does it hold?",
        {
            "2**answer": "this is the scale. Write its exponent.",
            "answer + 1": "then the gradient is 2^16 = 65536. Is that a number of fp16?",
            "15 - gradient": "the gradient is smaller than 1: the scale may be larger.",
            "15": "this is the exponent of the scaled gradient. What is the scale's exponent?",
        },
        exact=True,
    ),
    number(
        "skipped",
        "in the long run after that, the share of steps that are skipped because the scaler "
        "tries the next larger scale",
        "100 / (interval + 1)",
        "Follow the scale from one overflow to the next. How many steps is that?",
        {
            "100 / interval": "this counts the good steps between two overflows alone.",
            "100 / (interval + 2)": "how many good steps are there between two overflows?",
            "50": "this is right if the scale grows after each good step.",
            "0": "the scaler does not store the limit of fp16. It tries again.",
        },
        unit="%",
    ),
    where={"followed": _followed},
)

PART = Part("04/scaler_steps", 1, "A loss scaler, step by step", 5, 2, _QUESTIONS)
