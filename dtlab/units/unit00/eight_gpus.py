"""00/eight_gpus: a recipe for one GPU, moved to eight."""

from __future__ import annotations

from math import sqrt
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, choice, choices, number


def _draw(draw: Random) -> Values:
    batch = draw.choice((32, 64, 96, 128))
    return {
        "batch": batch,
        "rate": draw.choice((1e-3, 2e-3, 3e-3, 5e-3)),
        "samples": 8 * batch * draw.choice((25, 40, 60, 75)),
        "warmup": draw.choice((3, 4, 5)),
    }


_NOT_ADAM = "Adam divides by the length of the gradients; the rule is about steps along them."

PART = Part(
    "00/eight_gpus",
    2,
    "From one GPU to eight",
    8,
    1,
    asked(
        _draw,
        [
            ("on one GPU", "a batch of {batch}, a learning rate of {rate:g}"),
            ("on eight GPUs", "a batch of {batch} on each of them"),
            ("an epoch", "{samples} samples"),
            ("warm-up", "{warmup} epochs"),
        ],
        number(
            "effective",
            "the effective batch on eight GPUs",
            "8 * batch",
            "Of how many samples is the gradient the mean with which a step is made?",
            {
                "batch": "this is what one of them has. They average.",
                "batch / 8": "the batch is not shared out here.",
            },
            exact=True,
        ),
        number(
            "linear",
            "the learning rate on eight GPUs by the linear rule (Goyal et al. 2017)",
            "8 * rate",
            "By which factor has the effective batch grown?",
            {
                "sqrt(8) * rate": "this is the square root rule. Which one is linear?",
                "rate": "there are an eighth of the steps now.",
                "rate / 8": "there are fewer steps, and these are shorter.",
            },
        ),
        choices(
            "holds_for",
            "the optimizers that the linear rule was derived for and tried with",
            ("SGD", "SGD with momentum", "Adam", "AdamW"),
            {"SGD", "SGD with momentum"},
            "Which optimizers step along the mean gradient, and do not divide by its length?",
            {
                "Adam": f"look at Adam again. {_NOT_ADAM}",
                "AdamW": f"look at AdamW again. {_NOT_ADAM}",
                "SGD": "k small steps of plain SGD: where do they lead?",
                "SGD with momentum": "Goyal et al. trained with momentum.",
            },
        ),
        number(
            "root",
            "the learning rate for Adam, by the square root rule (Malladi et al. 2022)",
            "sqrt(8) * rate",
            "The root of the factor by which the effective batch has grown.",
            {
                "8 * rate": "this is the linear rule.",
                "rate": "with Adam too, the rate grows with the batch.",
            },
        ),
        number(
            "steps",
            "the number of steps in the warm-up on eight GPUs",
            "warmup * samples / batch / 8",
            "How many samples does a step take, on all GPUs together?",
            {
                "8 * answer": "so many it would be on one GPU.",
                "answer / warmup": "this is one epoch.",
            },
            unit="steps",
            exact=True,
        ),
        choice(
            "why_warmup",
            "why the rate goes up to its full value over some epochs",
            {
                "change": "at first the gradient changes from one small step to the next",
                "noise": "at first the gradients of ranks are noisier than later",
                "agree": "ranks have to agree on their parameters first",
                "moments": "the optimizer has no memory for its state yet",
            },
            "change",
            "On what does the linear rule rest, and when is that not so?",
            {
                "noise": "the mean over a larger batch has less noise, not more.",
                "agree": "ranks start alike and take the same steps.",
                "moments": "memory does not depend on the rate.",
            },
        ),
        where={"sqrt": sqrt},
    ),
)
