"""The values of 07/zero_bubble: backward split in two, what it saves and what it costs.

Qi et al. 2024, "Zero bubble pipeline parallelism", section 2 and Table 1. The B of that paper is
the gradient of the input alone: `I` in the letters of this course.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, floor
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_SPLITS = {"1f1b": 1, "h1": -1, "h2": -2}  # how often T_W is in the bubble


def _draw(draw: Random) -> Values:
    forward = draw.randrange(150, 320)
    stages = draw.choice((4, 6, 8, 10))
    given = {
        "stages": stages,
        "count": stages * draw.randrange(3, 7),
        "forward": forward / 10,  # ms
        "input": round(forward * draw.uniform(0.95, 1.02)) / 10,
        "weight": round(forward * draw.uniform(0.5, 0.68)) / 10,
    }
    enough = [_count_as_good(given, better) for better in ("h1", "h2")]
    on_the_edge = any(abs(one - round(one)) < 1e-3 for one in enough)  # floats round up or down
    return _draw(draw) if on_the_edge else given


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("p, stages", str(given["stages"])),
        ("m, microbatches of a step", str(given["count"])),
        ("T_F, forward", f"{given['forward']:g} ms"),
        ("T_I, gradient of the input", f"{given['input']:g} ms"),
        ("T_W, gradient of the weights", f"{given['weight']:g} ms"),
    ]


def _work(given: Values) -> float:
    """ms for one microbatch on one stage."""
    return float(given["forward"] + given["input"] + given["weight"])


def _bubble(times_weight: float, waits: int = -1) -> Callable[[Values], float]:
    """ms: p - 1 times T_F + T_I and so many T_W."""
    return lambda given: (
        (given["stages"] + waits)
        * (given["forward"] + given["input"] + times_weight * given["weight"])
    )


def _bubbles(given: Values) -> list[float]:
    return [_bubble(times)(given) for times in _SPLITS.values()]


def _rates(given: Values) -> list[float]:
    busy = given["count"] * _work(given)
    return [100 * one / (busy + one) for one in _bubbles(given)]


def _over(microbatches: Callable[[Values], int]) -> Callable[[Values], list[float]]:
    """Percent, over the time that so many microbatches take on one stage."""
    return lambda given: [
        100 * one / (microbatches(given) * _work(given)) for one in _bubbles(given)
    ]


def _count_as_good(given: Values, better: str = "h2") -> float:
    """Microbatches with which 1F1B idles for the same share of the time."""
    return float(given["count"] * _work(given) * (given["stages"] - 1)) / _bubble(_SPLITS[better])(
        given
    )


def _kept(*each: Callable[[int], int]) -> Callable[[Values], list[int]]:
    return lambda given: [one(given["stages"]) for one in each]


_ms = partial(number, unit="ms")

_WHY = Choice(
    {
        "messages": "a message takes time, and stages wait for it between the first and the last "
        "microbatch too",
        "filling": "p stages take p microbatches to fill, where the closed form has p - 1",
        "backward": "a backward pass takes longer than a forward pass",
        "optimizer": "the closed form leaves out the optimizer's step",
    },
    "messages",
    (
        Mistake(
            "filling", "the last stage begins after p - 1 forwards. That is not what is left."
        ),
        Mistake(
            "backward",
            "the closed form has T_F, T_I and T_W as they were measured. What does it take for "
            "nothing?",
        ),
        Mistake("optimizer", "so does the table: it is of a step up to its last gradient."),
    ),
    "What lies between a stage that ends and the next one that begins?",
)

ZERO_BUBBLE = Questions(
    _draw,
    _rows,
    (
        _ms(
            "one_f_one_b",
            "how long each stage is idle in a step under 1F1B",
            _bubble(1),
            "A stage waits for p - 1 others: for all that each of them does with a microbatch.",
            (
                _bubble(0),
                "the stage below waits for a whole backward here. Both pieces of it count.",
            ),
            (_bubble(1, 0), "one too many: a stage does not wait for itself."),
            (_bubble(-1), "so it is under H1, where W fills in."),
        ),
        _ms(
            "h1",
            "the same under ZB-H1",
            _bubble(-1),
            "Nobody waits for W now; and W runs where a stage would wait.",
            (_bubble(0), "nobody waits for W here. And what does a stage do while it waits?"),
            (_bubble(1), "so it is under 1F1B."),
            (_bubble(-2), "so it is under H2, which warms up for longer."),
        ),
        _ms(
            "h2",
            "the same under ZB-H2",
            _bubble(-2),
            "Your `h1`, less what more forwards in the warm-up make room for.",
            (_bubble(-1), "so it is under H1."),
            (_bubble(-3), "one W too many: T_F + T_I - T_W is what H1 leaves."),
            (lambda given: 0, "so it is where T_F + T_I = 2 T_W. Yours?"),
        ),
        number(
            "rates",
            "the share of the time of a step in which a stage is idle, as a list of three: 1F1B, "
            "H1, H2",
            _rates,
            "Idle time over idle time and m times the work of a microbatch.",
            (_over(lambda given: given["count"]), "this is over the ideal time."),
            (
                _over(lambda given: given["count"] + given["stages"] - 1),
                "this has the time of a step under 1F1B below all three. Each has its own.",
            ),
            unit="%",
        ),
        number(
            "as_good",
            "how many microbatches 1F1B needs to idle for no larger a share than H2 with your m",
            lambda given: ceil(_count_as_good(given)),
            "Shares are alike where bubbles over m are. Microbatches are whole: which way do you "
            "round?",
            (_count_as_good, "microbatches are whole: with how many is the share no larger?"),
            (lambda given: floor(_count_as_good(given)), "a part of a microbatch is missing."),
            (lambda given: ceil(_count_as_good(given, "h1")), "this is H1's share."),
            (
                lambda given: floor(given["count"] ** 2 / _count_as_good(given)),
                "fewer than H2 has: 1F1B idles for longer.",
            ),
            exact=True,
            unit="microbatches",
        ),
        number(
            "memory",
            "microbatches whose activations rank 0 keeps at most, a list of three: 1F1B, H1, H2",
            _kept(lambda p: p, lambda p: p, lambda p: 2 * p - 1),
            "How many forwards does rank 0 make before the first gradient comes back to it?",
            (
                _kept(*[lambda p: p] * 3),
                "what does H2 put into the gap before the first gradient?",
            ),
            (
                _kept(lambda p: p, lambda p: 2 * p - 1, lambda p: 2 * p - 1),
                "H1 warms up as 1F1B does.",
            ),
            (
                _kept(lambda p: p, lambda p: p, lambda p: 2 * p),
                "the last one is one too many: 2(p - 1) to warm up, and then?",
            ),
            (
                _kept(lambda p: p - 1, lambda p: p - 1, lambda p: 2 * p - 2),
                "these are the forwards of the warm-up. One more comes before the first gradient.",
            ),
            exact=True,
        ),
        Question(
            "why",
            1,
            "the paper's table has 24.31 % for 1F1B where the closed form gives 22.58 %, with "
            "p = 8, m = 24, T_F = 18.522, T_I = 18.086, T_W = 9.337 ms and 0.601 ms for a "
            "message: why",
            _WHY,
        ),
    ),
)

PART = Part("07/zero_bubble", 1, "Backward in two pieces", 6, 2, ZERO_BUBBLE)
