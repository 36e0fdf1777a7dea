"""01/averages: the sum and the average of two gradients."""

from __future__ import annotations

from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Number, Question, Questions, Values
from dtlab.units.unit01.gradients import gradient_rows, mean, own_means, scaled, total

__all__ = ["PART"]


def _draw_gradients(draw: Random) -> Values:
    first, second = draw.sample(range(1, 10), 2), draw.sample(range(1, 10), 2)
    return {"gradients": [first, [2 * b - a for a, b in zip(first, second, strict=True)]]}


AVERAGES = Questions(
    _draw_gradients,
    gradient_rows,
    (
        Question(
            "sum",
            1,
            "what both workers hold after an all-reduce with SUM",
            Number(
                total,
                (
                    Mistake(mean, "this is divided by two already. SUM does not divide."),
                    Mistake(
                        lambda given: [sum(gradient) for gradient in given["gradients"]],
                        "this adds the elements of one worker. Add what stands in the same place.",
                    ),
                    Mistake(
                        lambda given: [one for gradient in given["gradients"] for one in gradient],
                        "this puts the gradients one after another, as an all-gather does.",
                    ),
                ),
                "Add element by element.",
                tolerance=0,
            ),
        ),
        Question(
            "average",
            2,
            "the gradient that both workers step with",
            Number(
                mean,
                (
                    Mistake(total, "this is the sum. With it, the step is twice as long."),
                    Mistake(
                        own_means,
                        "this averages over the elements of one worker. Each element of the "
                        "gradient belongs to a weight of its own.",
                    ),
                    Mistake(lambda given: scaled(mean(given), 0.5), "this divides twice."),
                    Mistake(
                        lambda given: sum(mean(given)) / 2,
                        "this is one number. The gradient has one for each weight.",
                    ),
                    Mistake(
                        lambda given: given["gradients"][0],
                        "this is worker 0's own gradient: worker 1 does not count.",
                    ),
                ),
                "It follows from the sum by one operation.",
                tolerance=0,
            ),
        ),
        Question(
            "divide",
            1,
            "all_reduce was called with SUM: which workers divide by two?",
            Choice(
                {"both": "", "worker 0": "", "none": "the all-reduce has divided already"},
                "both",
                (
                    Mistake("worker 0", "then the copies of the model are no longer equal."),
                    Mistake("none", "SUM adds, and does nothing else."),
                ),
                "What does each worker hold after the all-reduce?",
            ),
        ),
    ),
)

PART = Part("01/averages", 1, "The average of two gradients", 3, 1, AVERAGES)
