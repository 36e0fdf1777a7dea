"""The values of 05/wire: what each rank sends in a step, by stage, with accumulation.

Once round a ring is (N-1)/N of all elements. Rajbhandari et al. 2020, "ZeRO", section 7, count it
as 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number
from dtlab.predict.traffic import Traffic, zero_traffic

__all__ = ["PART"]

_MEANING = {
    "grows": "it grows with k",
    "same": "it does not depend on k",
    "falls": "it falls with k",
}


def _draw(draw: Random) -> Values:
    return {
        "parameters": draw.randrange(12, 400) / 10,  # billions
        "ranks": draw.choice((3, 4, 6, 8, 12, 16)),
        "count": draw.choice((3, 4, 5, 6, 8)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("your model", f"{given['parameters']:g} billion parameters"),
        ("N, ranks", str(given["ranks"])),
        ("k, microbatches of a step", str(given["count"])),
    ]


def _traffic(given: Values, stage: int, count: int | None = None, **how: bool) -> Traffic:
    params = round(given["parameters"] * 1e9)
    return zero_traffic(params, stage, given["ranks"], count or given["count"], **how)


def _elements(stage: int, **how: bool) -> Callable[[Values], float]:
    """Billions of elements that each rank sends."""
    return lambda given: _traffic(given, stage, **how).elements / 1e9


def _passes(passes: Callable[[int], float]) -> Callable[[Values], float]:
    """Billions of elements if all of them go round so many times, of k microbatches."""
    return lambda given: (
        passes(given["count"]) * given["parameters"] * (given["ranks"] - 1) / given["ranks"]
    )


def _without_factor(passes: Callable[[int], float]) -> Callable[[Values], float]:
    return lambda given: passes(given["count"]) * given["parameters"]


def _stage_1(given: Values) -> list[float]:
    return [_elements(1)(given), _elements(1, gradients_everywhere=True)(given)]


def _both(first: float, second: float) -> Callable[[Values], list[float]]:
    passes = _passes(lambda _: first), _passes(lambda _: second)
    return lambda given: [each(given) for each in passes]


def _bytes(parameters: float, gradients: float) -> Callable[[Values], float]:
    """GB of stage 3, at so many bytes for each element of the two kinds."""
    return lambda given: _traffic(given, 3).nbytes(parameters, gradients) / 1e9


_elements_of = partial(number, unit="billion elements")
_NO_FACTOR = "the paper counts so. On a ring of N ranks each sends (N-1)/N of it."

_PER_SAMPLE = Choice(
    _MEANING,
    "same",
    (
        Mistake(
            "falls",
            "so it is at stages 0 and 1, which add up first and send once. What can stage 3 not "
            "put off?",
        ),
        Mistake("grows", "a step sends more. And each microbatch of it?"),
    ),
    "Divide your `stage_3` by k.",
)

WIRE = Questions(
    _draw,
    _rows,
    (
        _elements_of(
            "ddp",
            "DDP with `no_sync` in all microbatches but the last, its all-reduce on a ring",
            _elements(0),
            "An all-reduce is a reduce-scatter and an all-gather. How often is it made in a step?",
            (_without_factor(lambda _: 2), _NO_FACTOR),
            (_passes(lambda _: 1), "this is half of an all-reduce."),
            (_passes(lambda k: 2 * k), "`no_sync` leaves it out in all microbatches but one."),
        ),
        _elements_of(
            "stage_1",
            "stage 1, as a list of two: as the paper has it, gradients reduced to their owners "
            "once in a step; then DDP with ZeroRedundancyOptimizer and `no_sync`",
            _stage_1,
            "The second one all-reduces gradients, and then has new weights to hand round.",
            (_both(2, 2), "DDP's all-reduce gives all ranks all gradients, and then they step."),
            (_both(3, 3), "in the paper an owner alone gets its gradients: half an all-reduce."),
            (_both(1, 2), "the weights that an owner has stepped have to get to the others."),
            points=2,
        ),
        _elements_of(
            "stage_2",
            "stage 2",
            _elements(2),
            "Whose gradients may a rank keep between microbatches? And what goes round after "
            "the step?",
            (_passes(lambda _: 2), "a rank has no room to add up what is not its own."),
            (_passes(lambda k: 2 * k), "weights change once in a step, and go round once."),
            (_without_factor(lambda k: k + 1), _NO_FACTOR),
        ),
        _elements_of(
            "stage_3",
            "stage 3, blocks freed after the forward pass",
            _elements(3),
            "Count one microbatch first: a block is whole for its forward, freed, and whole for "
            "its backward; then its gradients go to their owners. How often does something go "
            "round? Of that, what can wait for the last microbatch? Each time a rank sends "
            "(N-1)/N of all elements.",
            (_passes(lambda k: k + 2), "weights do not stay from one microbatch to the next."),
            (
                _passes(lambda k: 2 * k),
                "this gathers in the forward pass only. Backward needs the weights as well.",
            ),
            (_passes(lambda _: 3), "this is one microbatch. What of it can wait for the last?"),
            (
                _passes(lambda k: 2 * k + 1),
                "this reduces gradients once in a step: who would hold them until then?",
            ),
            (_without_factor(lambda k: 3 * k), _NO_FACTOR),
        ),
        _elements_of(
            "kept",
            "stage 3 under `fully_shard(reshard_after_forward=False)`, which keeps what it has "
            "gathered until backward is through",
            _elements(3, reshard_after_forward=False),
            "Take your `stage_3`. Which gathering falls away?",
            (_elements(3), "with that setting backward finds the weights still there."),
            (
                _passes(lambda k: k + 1),
                "weights are gathered again in each microbatch's forward.",
            ),
        ),
        number(
            "gigabytes",
            "stage 3 in GB, weights gathered in bf16 and gradients reduced in fp32",
            _bytes(2, 4),
            "Divide the passes of your `stage_3` in two: those in which weights go round, at 2 "
            "bytes for each element, and those in which gradients do, at 4.",
            (_elements(3), "those are billions of elements: how many bytes has each?"),
            (_bytes(2, 0), "this is one kind alone: weights go round, and gradients too."),
            (_bytes(2, 2), "this sends gradients in 16 bits."),
            (_bytes(4, 4), "this gathers weights in fp32."),
            (_bytes(4, 2), "this has them the other way round."),
            unit="GB",
        ),
        Question(
            "each", 1, "what stage 3 sends for one microbatch, when k is larger", _PER_SAMPLE
        ),
    ),
)

PART = Part("05/wire", 1, "What is sent", 7, 2, WIRE)
