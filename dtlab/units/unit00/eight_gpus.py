"""00/eight_gpus: adapt a training recipe from one GPU to eight."""

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


_NOT_ADAM = "The rule holds for steps along the gradient; Adam divides the gradient by its size."

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
            "Each step uses an averaged gradient. Over how many samples is it averaged?",
            {
                "batch": "this is the batch of one GPU. All eight average their gradients.",
                "batch / 8": "the batch is not divided here: each GPU has a whole one.",
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
                "rate": "there are an eighth of the steps now, so each must be longer.",
                "rate / 8": "there are fewer steps now, and this makes each of them shorter too.",
            },
        ),
        choices(
            "holds_for",
            "the optimizers for which the linear rule was derived and tested",
            ("SGD", "SGD with momentum", "Adam", "AdamW"),
            {"SGD", "SGD with momentum"},
            "Which optimizers step along the mean gradient, without dividing by its size?",
            {
                "Adam": f"look at Adam again. {_NOT_ADAM}",
                "AdamW": f"look at AdamW again. {_NOT_ADAM}",
                "SGD": "where do k small steps of plain SGD lead, compared with one large step?",
                "SGD with momentum": "Goyal et al. trained with momentum.",
            },
        ),
        number(
            "root",
            "the learning rate for Adam, by the square root rule (Malladi et al. 2022)",
            "sqrt(8) * rate",
            "Take the square root of the factor by which the effective batch has grown.",
            {
                "8 * rate": "this is the linear rule.",
                "rate": "with Adam too, the rate grows with the batch.",
            },
        ),
        number(
            "steps",
            "the number of steps in the warm-up on eight GPUs",
            "warmup * samples / batch / 8",
            "How many samples do all GPUs together process in one step?",
            {
                "8 * answer": "this is the number of steps on one GPU.",
                "answer / warmup": "this is the number of steps in one epoch.",
            },
            unit="steps",
            exact=True,
        ),
        choice(
            "why_warmup",
            "why the learning rate rises to its full value over several epochs",
            {
                "change": "at first the gradient changes from one small step to the next",
                "noise": "at first the gradients of ranks are noisier than later",
                "agree": "ranks must agree on their parameters first",
                "moments": "the optimizer has no memory for its state yet",
            },
            "change",
            "Which assumption does the linear rule make, and when does it fail?",
            {
                "noise": "the mean over a larger batch has less noise, not more.",
                "agree": "ranks start with equal parameters and take the same steps.",
                "moments": "memory does not depend on the learning rate.",
            },
        ),
        where={"sqrt": sqrt},
    ),
)
