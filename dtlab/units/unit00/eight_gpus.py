"""The values of 00/eight_gpus: a recipe for one GPU, moved to eight."""

from __future__ import annotations

from math import sqrt
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART", "QUESTIONS"]

_GPUS = 8


def _draw(draw: Random) -> Values:
    batch = draw.choice((32, 64, 96, 128))
    return {
        "batch": batch,
        "rate": draw.choice((1e-3, 2e-3, 3e-3, 5e-3)),
        "samples": _GPUS * batch * draw.choice((25, 40, 60, 75)),
        "warmup": draw.choice((3, 4, 5)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("on one GPU", f"a batch of {given['batch']}, a learning rate of {given['rate']:g}"),
        ("on eight GPUs", f"a batch of {given['batch']} on each of them"),
        ("an epoch", f"{given['samples']:,} samples".replace(",", " ")),
        ("warm-up", f"{given['warmup']} epochs"),
    ]


def _steps(given: Values) -> float:
    """Of an epoch on eight GPUs."""
    return float(given["samples"] / given["batch"] / _GPUS)


_NOT_ADAM = (
    "Adam divides by the length of noisy gradients, which has become less with the larger batch. "
    "The rule is about plain steps along the gradient."
)

QUESTIONS = Questions(
    _draw,
    _rows,
    (
        number(
            "effective",
            "the effective batch on eight GPUs",
            lambda given: _GPUS * given["batch"],
            "Of how many samples is the gradient the mean with which a step is made?",
            (lambda given: given["batch"], "this is what one of them has. They average."),
            (lambda given: given["batch"] / _GPUS, "the batch is not shared out here."),
            exact=True,
        ),
        number(
            "linear",
            "the learning rate on eight GPUs by the linear rule (Goyal et al. 2017)",
            lambda given: _GPUS * given["rate"],
            "By which factor has the effective batch grown?",
            (
                lambda given: sqrt(_GPUS) * given["rate"],
                "this is the square root rule. Which one is linear?",
            ),
            (lambda given: given["rate"], "there are an eighth of the steps now."),
            (lambda given: given["rate"] / _GPUS, "there are fewer steps, and these are shorter."),
        ),
        Question(
            "holds_for",
            1,
            "the optimizers that the linear rule was derived for and tried with",
            Choices(
                {"SGD": "", "SGD with momentum": "", "Adam": "", "AdamW": ""},
                frozenset({"SGD", "SGD with momentum"}),
                (
                    Mistake("Adam", f"look at Adam again. {_NOT_ADAM}"),
                    Mistake("AdamW", f"look at AdamW again. {_NOT_ADAM}"),
                    Mistake("SGD", "k small steps of plain SGD: where do they lead?"),
                    Mistake("SGD with momentum", "Goyal et al. trained with momentum."),
                ),
                "Write down k small steps and a large one. Which optimizers step along the mean "
                "gradient, and do not divide by its length?",
            ),
        ),
        number(
            "root",
            "the learning rate on eight GPUs by the rule for Adam, the square root (Malladi et "
            "al. 2022), if the recipe is for Adam",
            lambda given: sqrt(_GPUS) * given["rate"],
            "The root of the factor by which the effective batch has grown.",
            (lambda given: _GPUS * given["rate"], "this is the linear rule."),
            (lambda given: given["rate"], "with Adam too, the rate grows with the batch."),
        ),
        number(
            "steps",
            "the number of steps in the warm-up on eight GPUs",
            lambda given: given["warmup"] * _steps(given),
            "How many samples does a step take, on all GPUs together?",
            (
                lambda given: _GPUS * given["warmup"] * _steps(given),
                "so many it would be on one GPU.",
            ),
            (_steps, "this is one epoch."),
            unit="steps",
            exact=True,
        ),
        Question(
            "why_warmup",
            1,
            "why the rate goes up to its full value over some epochs",
            Choice(
                {
                    "change": "at first the gradient changes from one small step to the next, so "
                    "that a large step is not like k small ones",
                    "noise": "at first the gradients of ranks are noisier than later",
                    "agree": "ranks have to agree on their parameters first",
                    "moments": "the optimizer has no memory for its state yet",
                },
                "change",
                (
                    Mistake("noise", "the mean over a larger batch has less noise, not more."),
                    Mistake("agree", "ranks start alike and take the same steps."),
                    Mistake("moments", "memory does not depend on the rate."),
                ),
                "On what does the linear rule rest, and when is that not so?",
            ),
        ),
    ),
)

PART = Part(
    name="00/eight_gpus",
    level=2,
    title="From one GPU to eight",
    minutes=8,
    difficulty=1,
    check=QUESTIONS,
)
