"""07/bubble: the bubble over the ideal and the total time, uneven stages, and traffic.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM", section 2.2: the bubble over the ideal time is (p-1)/m, interleaved (p-1)/(vm).
Huang et al. 2019, "GPipe", section 2.3: (p-1)/(m+p-1), idle time over the total.
"""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Any

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    stages = draw.choice((4, 6, 8, 12, 16))
    times = [draw.randrange(10, 21) for _ in range(4)]
    slow = draw.randrange(4)
    times[slow] = draw.randrange(26, 40)
    given: dict[str, Any] = {
        "stages": stages,
        "count": stages * draw.randrange(2, 9),
        "chunks": draw.choice((2, 3, 4)),
        "percent": draw.choice((3, 4, 6, 7, 8, 9, 11, 12, 13)),
        "times": times,  # ms
        "inputs": draw.randrange(5, 12),
        "size": draw.choice((1, 2, 4)),
        "tokens": draw.choice((1024, 2048, 4096)),
        "width": draw.choice((4096, 5120, 6144, 8192, 12288)),
    }
    example = (stages, given["count"]) == (4, 32)
    on_the_edge = 100 * (stages - 1) % given["percent"] == 0  # float rounding would decide
    return _draw(draw) if example or on_the_edge else given


_ONE_TOO_MANY = "one too many: how many stages are before the last one?"

PART = Part(
    "07/bubble",
    1,
    "The bubble, and what limits a pipeline",
    8,
    2,
    asked(
        _draw,
        [
            ("p, equal stages", "{stages}"),
            ("m, microbatches of a step", "{count}"),
            ("v, chunks on each rank", "{chunks}"),
            (
                "tensor that crosses a boundary",
                "b = {size} sequences in a microbatch, s = {tokens} tokens, h = {width}",
            ),
            ("your uneven stages", "forward passes of {times} ms"),
        ],
        number(
            "ideal",
            "the bubble of your equal stages over the ideal time, in which they never pause",
            "ideal",
            "How many microbatches does a stage compute, and for how many more is it idle?",
            {
                "total": "this is over the time that the step really takes.",
                "100 * p / m": _ONE_TOO_MANY,
                "answer / p": "each stage waits for the whole bubble.",
            },
            unit="%",
        ),
        number(
            "total",
            "the same idle time over the time that the step takes",
            "total",
            "The step takes the ideal time plus the bubble.",
            {
                "ideal": "this is over the ideal time.",
                "100 - answer": "this is the share of computing.",
                "100 * p / (m + p)": _ONE_TOO_MANY,
            },
            unit="%",
        ),
        number(
            "used",
            "the share of time that a stage computes, with 1 and with p microbatches, as a list",
            "[100 / p, 100 * p / (2 * p - 1)]",
            "With one microbatch, one stage works at a time. How long do p microbatches take?",
            {
                "[100 - share for share in answer]": "this is the share of idle time.",
                "[50, 50]": "some texts claim this. Draw the grid: how many cells are filled?",
                "[100 / p, 100]": "all p stages work at one moment only. What about before and "
                "after it?",
            },
            unit="%",
        ),
        number(
            "interleaved",
            "the bubble over the ideal time if each rank holds v chunks, interleaved",
            "ideal / chunks",
            "A chunk takes 1/v of a stage's time. For how many chunks does the last rank wait?",
            {
                "ideal": "this is with one chunk on each rank.",
                "ideal * chunks": "more stages follow each other, but each is shorter.",
                "100 / (1 + 100 / answer)": "this is over the total, not over the ideal time.",
            },
            unit="%",
        ),
        number(
            "microbatches",
            "without chunks: fewest microbatches that leave at most {percent} % of the total idle",
            "ceil((p - 1) * (100 - percent) / percent)",
            "Solve (p-1)/(m+p-1) for m; round up to a whole number.",
            {
                "ceil(100 * (p - 1) / percent)": "this is over the ideal time. Which denominator "
                "does the question ask for?",
                "answer - 1": "with this many the idle share is still slightly too large.",
                "p * (100 - percent) // percent + 1": "this counts a stage too many.",
            },
            exact=True,
            unit="microbatches",
        ),
        number(
            "makespan",
            "how long {inputs} microbatches take through your uneven stages, forward only",
            "makespan",
            "Follow the first microbatch through all stages. How often do others arrive after it?",
            {
                "inputs * sum(times)": "here a microbatch starts only after the previous one has "
                "left the last stage.",
                "(inputs + 3) * max(times)": "this assumes that all stages are as slow as the "
                "slowest one.",
                "(inputs + 3) * sum(times) / 4": "this assumes the same work in equal stages.",
                "inputs * max(times)": "this is the slowest stage alone. What about the others?",
            },
            unit="ms",
        ),
        number(
            "limit",
            "the largest speedup of your uneven stages over one GPU, with any m",
            "sum(times) / max(times)",
            "In the long run, how often does a pipeline finish a microbatch, and one GPU?",
            {
                "4": "this would be right if the four took the same time.",
                "inputs * sum(times) / makespan": "this is with few microbatches. What is it with "
                "more and more?",
                "max(times) / min(times)": "this compares two stages. How fast is one GPU?",
            },
        ),
        number(
            "boundary",
            "the bytes that cross one boundary of equal stages in a step, both ways, 16 bits per "
            "element",
            "2 * 2 * size * tokens * width * m / 1e9",
            "b x s x h elements forward, as many gradients backward, for each microbatch.",
            {
                "answer / 2": "this is half: is it one direction, or one byte per element?",
                "answer / m": "this is one microbatch.",
                "answer * (p - 1)": "these are all boundaries together.",
            },
            unit="GB",
        ),
        where={
            "ceil": ceil,
            "p": "stages",
            "m": "count",
            "ideal": "100 * (p - 1) / m",
            "total": "100 * (p - 1) / (m + p - 1)",
            "makespan": "sum(times) + (inputs - 1) * max(times)",
        },
    ),
)
