"""01/averages: compute the sum and the average of two gradients."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number

__all__ = ["PART", "SUMS", "gradient_rows"]

# Gradients small enough to add up and average by hand --------------------------------------------

SUMS = {  # formulas computed from `gradients`
    "total": "[sum(column) for column in zip(*gradients)]",
    "mean": "[value / len(gradients) for value in total]",
    "worker_means": "[sum(gradient) / len(gradient) for gradient in gradients]",
}


def gradient_rows(given: Values) -> list[tuple[str, str]]:
    return [
        (f"worker {rank}", f"gradient {gradient}")
        for rank, gradient in enumerate(given["gradients"])
    ]


# The part ----------------------------------------------------------------------------------------


def _draw(draw: Random) -> Values:
    first, second = draw.sample(range(1, 10), 2), draw.sample(range(1, 10), 2)
    return {"gradients": [first, [2 * b - a for a, b in zip(first, second, strict=True)]]}


PART = Part(
    "01/averages",
    1,
    "The average of two gradients",
    3,
    1,
    asked(
        _draw,
        gradient_rows,
        number(
            "sum",
            "the tensor that both workers hold after an all-reduce with SUM",
            "total",
            "Add element by element.",
            {
                "mean": "this is divided by two already. SUM does not divide.",
                "[sum(gradient) for gradient in gradients]": "this adds the elements of one "
                "worker. Add the elements in the same position of both workers.",
                "gradients[0] + gradients[1]": "this is an all-gather: it concatenates.",
            },
            exact=True,
        ),
        number(
            "average",
            "the gradient that both workers use in their step",
            "mean",
            "Which operation turns the sum into the average?",
            {
                "total": "this is the sum. With it, the step is twice as long.",
                "worker_means": "this averages over the elements of one worker.",
                "[value / 2 for value in mean]": "this divides by two twice.",
                "sum(mean) / 2": "this is one number. The gradient has one for each weight.",
                "gradients[0]": "this is worker 0's own gradient, without worker 1's.",
            },
            points=2,
            exact=True,
        ),
        choice(
            "divide",
            "all_reduce was called with SUM: which workers divide by two?",
            {"both": "", "worker 0": "", "none": "the all-reduce has divided already"},
            "both",
            "What does each worker hold after the all-reduce?",
            {
                "worker 0": "then the copies of the model are no longer equal.",
                "none": "SUM only adds.",
            },
        ),
        where=SUMS,
    ),
)
