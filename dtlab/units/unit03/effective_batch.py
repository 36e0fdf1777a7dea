"""The values of 03/effective_batch: three runs, and one of them through an epoch."""

from __future__ import annotations

from functools import partial
from math import ceil
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]


def _draw(draw: Random) -> Values:
    copies, degree = draw.choice((4, 8)), draw.choice((2, 4))
    micro, count = draw.choice((2, 4, 8)), draw.randint(3, 7)
    rounds = count * draw.randint(50, 99) + draw.randint(1, count - 1)
    return {
        "a": {"micro": draw.choice((2, 4, 8)), "count": draw.choice((4, 8, 16))},
        "b": {"gpus": draw.choice((4, 8, 16)), "micro": draw.choice((16, 32, 64))},
        "c": {"gpus": copies * degree, "degree": degree, "micro": micro, "count": count},
        "samples": copies * micro * rounds,
        "wanted": copies * micro * draw.randint(count + 1, 12),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    a, b, c = given["a"], given["b"], given["c"]
    return [
        ("run A", f"1 GPU; microbatches of {a['micro']} samples, {a['count']} of them to a step"),
        (
            "run B",
            f"{b['gpus']} GPUs, a copy of the model on each; microbatches of {b['micro']} "
            "samples, one to a step",
        ),
        (
            "run C",
            f"{c['gpus']} GPUs, tensor-parallel degree {c['degree']}; microbatches of "
            f"{c['micro']} samples, {c['count']} of them to a step",
        ),
        ("data set of run C", f"{given['samples']} samples"),
    ]


def _copies(given: Values) -> int:
    """The data-parallel degree of run C."""
    return int(given["c"]["gpus"] // given["c"]["degree"])


def _together(given: Values) -> int:
    """Samples that all copies of run C take in one microbatch each."""
    return _copies(given) * int(given["c"]["micro"])


def _effective(given: Values) -> int:
    return _together(given) * int(given["c"]["count"])


def _rounds(given: Values) -> int:
    """Microbatches that each copy of run C takes in an epoch."""
    return int(given["samples"]) // _together(given)


def _steps(given: Values) -> int:
    return -(-_rounds(given) // int(given["c"]["count"]))  # rounded up


_samples = partial(number, unit="samples", exact=True)
_count = partial(number, exact=True)

EFFECTIVE_BATCH = Questions(
    _draw,
    _rows,
    (
        _samples(
            "accumulated",
            "the effective batch of run A",
            lambda given: given["a"]["micro"] * given["a"]["count"],
            "How many samples have a say in one step of the optimizer?",
            (
                lambda given: given["a"]["micro"],
                "this is one microbatch. The optimizer waits for several.",
            ),
            (
                lambda given: given["a"]["count"],
                "this counts microbatches. Each of them has several samples.",
            ),
            (
                lambda given: given["a"]["micro"] + given["a"]["count"],
                "this adds samples to microbatches.",
            ),
        ),
        _samples(
            "data_parallel",
            "the effective batch of run B",
            lambda given: given["b"]["gpus"] * given["b"]["micro"],
            "Gradients are averaged over the GPUs before the step: over how many samples is that?",
            (
                lambda given: given["b"]["micro"],
                "this is what one GPU sees. The step is taken with the gradients of all.",
            ),
            (
                lambda given: given["b"]["micro"] / given["b"]["gpus"],
                "this splits a microbatch among the GPUs. Each of them has one of its own.",
            ),
            (
                lambda given: given["b"]["micro"] + given["b"]["gpus"],
                "this adds GPUs to samples.",
            ),
        ),
        _samples(
            "tensor_parallel",
            "the effective batch of run C",
            _effective,
            "How many copies of the model are there, and how many samples does each take to a "
            "step?",
            (
                lambda given: given["c"]["gpus"] * given["c"]["micro"] * given["c"]["count"],
                "this counts every GPU as a copy of the model. Those that share one copy see the "
                "same samples.",
            ),
            (
                lambda given: given["c"]["micro"] * given["c"]["count"],
                "this is what one copy of the model sees. How many copies are there?",
            ),
            (
                lambda given: given["c"]["degree"] * given["c"]["micro"] * given["c"]["count"],
                "this multiplies by the GPUs of one copy. They see the same samples.",
            ),
            (_together, "this is one microbatch of every copy. A step waits for several."),
        ),
        _count(
            "micro_batches",
            "how many microbatches to a step give run C an effective batch of {wanted} samples",
            lambda given: given["wanted"] // _together(given),
            "How many samples do all copies take together, in one microbatch each?",
            (
                lambda given: given["wanted"] / given["c"]["micro"],
                "so many it takes with one copy of the model. There are more of them at work.",
            ),
            (
                lambda given: given["wanted"] / (given["c"]["gpus"] * given["c"]["micro"]),
                "this counts every GPU as a copy of the model.",
            ),
            (
                lambda given: given["wanted"] / _copies(given),
                "so many samples each copy has to take to a step. In how many microbatches?",
            ),
        ),
        _count(
            "steps",
            "optimizer steps of run C in an epoch; the last one may have fewer microbatches",
            _steps,
            "Divide the data set by the effective batch of run C.",
            (
                lambda given: _rounds(given) // given["c"]["count"],
                "this leaves samples over at the end of the epoch. They get a step too.",
            ),
            (
                lambda given: _rounds(given) / given["c"]["count"],
                "this is not a whole number. What is left over at the end of the epoch gets a "
                "step too.",
            ),
            (_rounds, "these are the microbatches of one copy. How many of them make a step?"),
            (
                lambda given: ceil(
                    given["samples"]
                    / (given["c"]["gpus"] * given["c"]["micro"] * given["c"]["count"])
                ),
                "this takes an effective batch in which every GPU counts as a copy of the model.",
            ),
        ),
        _count(
            "all_reduces",
            "all-reduces of gradients in which a GPU takes part in that epoch, without `no_sync`",
            _rounds,
            "What does every backward pass do, without `no_sync`?",
            (_steps, "so many there would be if gradients travelled once for every step."),
            (
                lambda given: _steps(given) * given["c"]["count"],
                "this counts the last step like the others. It has fewer microbatches.",
            ),
            (
                lambda given: given["samples"] // given["c"]["micro"],
                "these are the microbatches of all copies. In one all-reduce, all copies take "
                "part.",
            ),
        ),
        _count(
            "no_sync",
            "the same, with all microbatches of a step but its last one inside `no_sync`",
            _steps,
            "Which backward passes average gradients, and how many of those are there?",
            (_rounds, "so many there are without `no_sync`."),
            (
                lambda given: _rounds(given) - _steps(given),
                "these are the backward passes inside `no_sync`: they send nothing.",
            ),
            (
                lambda given: _rounds(given) // given["c"]["count"],
                "and the short step at the end of the epoch?",
            ),
        ),
    ),
)

PART = Part("03/effective_batch", 1, "The effective batch", 6, 1, EFFECTIVE_BATCH)
