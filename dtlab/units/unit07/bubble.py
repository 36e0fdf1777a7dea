"""The values of 07/bubble: idle shares in two denominators, uneven stages, what is sent.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM", section 2.2: the bubble over the ideal time is (p-1)/m, interleaved (p-1)/(vm).
Huang et al. 2019, "GPipe", section 2.3: (p-1)/(m+p-1), idle over all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from random import Random
from typing import Any

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]


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
    on_the_edge = 100 * (stages - 1) % given["percent"] == 0  # where floats round up or down
    return _draw(draw) if example or on_the_edge else given


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("p, equal stages", str(given["stages"])),
        ("m, microbatches of a step", str(given["count"])),
        ("v, chunks on each rank", str(given["chunks"])),
        (
            "what crosses a boundary",
            f"b = {given['size']} sequences in a microbatch, s = {given['tokens']} tokens, "
            f"h = {given['width']}",
        ),
        ("your uneven stages", f"forward passes of {given['times']} ms"),
    ]


def _share(
    top: Callable[[int, int], float], bottom: Callable[[int, int], float]
) -> Callable[[Values], float]:
    """Percent, from p and m."""

    def percent(given: Values) -> float:
        p, m = given["stages"], given["count"]
        return 100 * top(p, m) / bottom(p, m)

    return percent


def _used(given: Values) -> list[float]:
    """Percent with one microbatch, and with as many as there are stages."""
    p = given["stages"]
    return [100 / p, 100 * p / (2 * p - 1)]


def _fewest(given: Values) -> int:
    p, percent = given["stages"], given["percent"]
    return ceil(float((p - 1) * (100 - percent) / percent))


def _fewest_over_ideal(given: Values) -> int:
    return ceil(float(100 * (given["stages"] - 1) / given["percent"]))


def _makespan(given: Values) -> float:
    """ms until the last microbatch is out."""
    times: list[int] = given["times"]
    return float(sum(times) + (given["inputs"] - 1) * max(times))


def _limit(given: Values) -> float:
    times: list[int] = given["times"]
    return sum(times) / max(times)


def _crossing(given: Values) -> float:
    """GB over one boundary in a step, there and back."""
    elements = given["size"] * given["tokens"] * given["width"] * given["count"]
    return float(2 * 2 * elements / 1e9)


_percent = partial(number, unit="%")
_ideal = _share(lambda p, m: p - 1, lambda p, m: m)
_total = _share(lambda p, m: p - 1, lambda p, m: m + p - 1)

BUBBLE = Questions(
    _draw,
    _rows,
    (
        _percent(
            "ideal",
            "the bubble of your equal stages over the ideal time, in which each stage computes "
            "without a pause",
            _ideal,
            "How many microbatches does a stage compute, and for how many more is it idle?",
            (_total, "this is over the time that the step really takes."),
            (
                _share(lambda p, m: p, lambda p, m: m),
                "one too many: how many stages does the first microbatch pass before the last "
                "stage can begin?",
            ),
            (_share(lambda p, m: p - 1, lambda p, m: p * m), "each stage waits as long as that."),
        ),
        _percent(
            "total",
            "the same idle time over the time that the step takes",
            _total,
            "The step takes the ideal time and the bubble.",
            (_ideal, "this is over the ideal time."),
            (_share(lambda p, m: m, lambda p, m: m + p - 1), "this is what a stage computes."),
            (
                _share(lambda p, m: p, lambda p, m: m + p),
                "one too many: how many stages does the first microbatch pass before the last "
                "stage can begin?",
            ),
        ),
        _percent(
            "used",
            "the share of the time in which a stage computes, as a list of two: with one "
            "microbatch, and with as many as there are stages",
            _used,
            "With one microbatch one stage works at a time. And how long do p of them take?",
            (lambda given: [100 - one for one in _used(given)], "this is the share of idle time."),
            (
                lambda given: [50, 50],
                "texts say so, for four stages. Draw the grid: how many cells are filled?",
            ),
            (
                lambda given: [100 / given["stages"], 100],
                "with p of them all stages work in one moment. And before it, and after?",
            ),
        ),
        _percent(
            "interleaved",
            "the bubble over the ideal time if each rank holds v chunks, interleaved",
            lambda given: _ideal(given) / given["chunks"],
            "A chunk takes a v-th part of the time that a stage takes. How many of them does the "
            "last rank wait for?",
            (_ideal, "this is with one chunk on each rank."),
            (
                lambda given: _ideal(given) * given["chunks"],
                "there are more stages in a row now, but each is shorter, and ranks are as many "
                "as before.",
            ),
            (
                lambda given: 100 / (1 + 100 * given["chunks"] / _ideal(given)),
                "this is over the time that the step takes. The ideal time is asked for.",
            ),
        ),
        number(
            "microbatches",
            "without chunks: the fewest microbatches with which at most {percent} % of the time "
            "that the step takes is idle",
            _fewest,
            "Solve (p-1)/(m+p-1) for m; microbatches are whole.",
            (_fewest_over_ideal, "this is over the ideal time. Which denominator is asked for?"),
            (
                lambda given: _fewest(given) - 1,
                "with this many the idle share is still a little more than that.",
            ),
            (
                lambda given: given["stages"] * (100 - given["percent"]) // given["percent"] + 1,
                "this counts a stage too many.",
            ),
            exact=True,
            unit="microbatches",
        ),
        number(
            "makespan",
            "how long {inputs} microbatches take through your uneven stages, forward only",
            _makespan,
            "Follow the first microbatch through all stages; after it, how often does one come "
            "out?",
            (
                lambda given: given["inputs"] * sum(given["times"]),
                "here a microbatch waits until the one before it is out of the last stage.",
            ),
            (
                lambda given: (given["inputs"] + 3) * max(given["times"]),
                "this takes all stages for as slow as the slowest one. The first microbatch does "
                "not wait in any.",
            ),
            (
                lambda given: (given["inputs"] + 3) * sum(given["times"]) / 4,
                "so it were with the same work in equal stages.",
            ),
            (
                lambda given: given["inputs"] * max(given["times"]),
                "this is the slowest stage alone. What of the way to it and from it?",
            ),
            unit="ms",
        ),
        number(
            "limit",
            "how many times faster than one GPU your uneven stages are at most, with ever more "
            "microbatches",
            _limit,
            "In the long run: how often does a microbatch come out, and how often on one GPU?",
            (lambda given: 4, "so it would be if the four took the same time."),
            (
                lambda given: given["inputs"] * sum(given["times"]) / _makespan(given),
                "this is with the microbatches of the question before. What with ever more?",
            ),
            (
                lambda given: max(given["times"]) / min(given["times"]),
                "the slowest over the fastest one. What does one GPU have to do for a microbatch?",
            ),
        ),
        number(
            "boundary",
            "what crosses one boundary between two equal stages in a step, both directions "
            "together, 16 bits per element",
            _crossing,
            "b x s x h elements forward, as many gradients backward, for each microbatch.",
            (
                lambda given: _crossing(given) / 2,
                "half of it: is it one direction, or one byte for each element?",
            ),
            (lambda given: _crossing(given) / given["count"], "this is one microbatch."),
            (
                lambda given: _crossing(given) * (given["stages"] - 1),
                "these are all boundaries together.",
            ),
            unit="GB",
        ),
    ),
)

PART = Part("07/bubble", 1, "The bubble and what caps a pipeline", 8, 2, BUBBLE)
