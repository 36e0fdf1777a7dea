"""07/zero_bubble: the gain and the cost of splitting the backward pass in two.

Qi et al. 2024, "Zero bubble pipeline parallelism", section 2 and Table 1. The B of that paper is
the gradient of the input alone: `I` in the letters of this course.
"""

from __future__ import annotations

from math import ceil, floor
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number


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
    enough = [_as_good(given, saved) for saved in (1, 2)]
    on_the_edge = any(abs(x - round(x)) < 1e-3 for x in enough)  # float rounding would decide
    return _draw(draw) if on_the_edge else given


def _as_good(given: Values, saved: int) -> float:
    """Microbatches with which 1F1B is idle for the share of ZB-H1 (`saved` 1) or ZB-H2 (2)."""
    both, weight = given["forward"] + given["input"], given["weight"]
    return float(given["count"] * (both + weight) / (both - saved * weight))


PART = Part(
    "07/zero_bubble",
    1,
    "Backward in two halves",
    6,
    2,
    asked(
        _draw,
        [
            ("p, stages", "{stages}"),
            ("m, microbatches of a step", "{count}"),
            ("T_F, forward", "{forward:g} ms"),
            ("T_I, gradient of the input", "{input:g} ms"),
            ("T_W, gradient of the weights", "{weight:g} ms"),
        ],
        number(
            "one_f_one_b",
            "how long each stage is idle in a step under 1F1B",
            "(p - 1) * (f + i + w)",
            "A stage waits for p - 1 others: for everything that each does with a microbatch.",
            {
                "(p - 1) * (f + i)": "the wait includes a whole backward. Both pieces count.",
                "p * (f + i + w)": "one too many: a stage does not wait for itself.",
                "(p - 1) * (f + i - w)": "this is right for H1, where W fills in.",
            },
            unit="ms",
        ),
        number(
            "h1",
            "the same under ZB-H1",
            "(p - 1) * (f + i - w)",
            "No stage waits for W now, and W runs while a stage would wait.",
            {
                "(p - 1) * (f + i)": "what does a stage do while it waits?",
                "(p - 1) * (f + i + w)": "this is right for 1F1B.",
                "(p - 1) * (f + i - 2 * w)": "this is right for H2, which has a longer warm-up.",
            },
            unit="ms",
        ),
        number(
            "h2",
            "the same under ZB-H2",
            "(p - 1) * (f + i - 2 * w)",
            "Subtract from your `h1` the idle time filled by the additional warm-up forwards.",
            {
                "(p - 1) * (f + i - w)": "this is right for H1.",
                "(p - 1) * (f + i - 3 * w)": "one W too many: H1 leaves T_F + T_I - T_W.",
                "0": "this is right if T_F + T_I = 2 T_W. Is that true for yours?",
            },
            unit="ms",
        ),
        number(
            "rates",
            "the share of a step in which a stage is idle, a list of three: 1F1B, H1, H2",
            "[100 * idle / (idle + m * work) for idle in bubbles]",
            "Divide idle time by idle time plus m times the work of a microbatch.",
            {
                "[100 * idle / (m * work) for idle in bubbles]": "this is over the ideal time.",
                "[100 * t / ((m + p - 1) * work) for t in bubbles]": "this divides all three "
                "by the time of a step under 1F1B. Each schedule has its own time.",
            },
            unit="%",
        ),
        number(
            "as_good",
            "how many microbatches 1F1B needs for an idle share no larger than H2's with your m",
            "ceil(as_h2)",
            "Shares are equal if the bubbles over m are equal. In which direction do you round?",
            {
                "as_h2": "microbatches are whole: with how many is the share no larger?",
                "floor(as_h2)": "a part of a microbatch is missing.",
                "ceil(as_h1)": "this is H1's share.",
                "floor(m**2 / as_h2)": "fewer than H2 has: 1F1B idles for longer.",
            },
            exact=True,
            unit="microbatches",
        ),
        number(
            "memory",
            "microbatches whose activations rank 0 keeps at most, a list of three: 1F1B, H1, H2",
            "[p, p, 2 * p - 1]",
            "How many forwards does rank 0 make before it receives the first gradient?",
            {
                "[p, p, p]": "what does H2 put into the gap before the first gradient?",
                "[p, 2 * p - 1, 2 * p - 1]": "H1 warms up as 1F1B does.",
                "[p, p, 2 * p]": "the last number is one too large: after 2(p - 1) to warm up, "
                "how many more?",
                "[count - 1 for count in answer]": "these are the forwards of the warm-up alone.",
            },
            exact=True,
        ),
        choice(
            "why",
            "the paper's table has 24.31 % for 1F1B, but the closed form gives 22.58 %, with "
            "p = 8, m = 24, T_F = 18.522, T_I = 18.086, T_W = 9.337 ms and 0.601 ms for a "
            "message: why?",
            {
                "messages": "a message takes time, and stages wait for it between the first and "
                "the last microbatch too",
                "filling": "p stages take p microbatches to fill, but the closed form has p - 1",
                "backward": "a backward pass takes longer than a forward pass",
                "optimizer": "the closed form leaves out the optimizer's step",
            },
            "messages",
            "What lies between the end of one stage and the beginning of the next?",
            {
                "filling": "the last stage begins after p - 1 forwards. That is not the reason.",
                "backward": "T_F, T_I and T_W were measured. What is assumed to be free?",
                "optimizer": "so does the table: it is of a step up to its last gradient.",
            },
        ),
        where={
            "ceil": ceil,
            "floor": floor,
            "as_good": _as_good,
            "p": "stages",
            "m": "count",
            "f": "forward",
            "i": "input",
            "w": "weight",
            "work": "f + i + w",  # on a stage, for one microbatch
            "bubbles": "[(p - 1) * (f + i + times * w) for times in (1, -1, -2)]",
            "as_h1": "as_good(given, 1)",
            "as_h2": "as_good(given, 2)",
        },
    ),
)
