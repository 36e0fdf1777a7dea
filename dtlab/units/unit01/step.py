"""01/step: one step of synchronous data parallelism, worked out by hand."""

from __future__ import annotations

from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Number, Question, Questions, Values
from dtlab.units.unit01.gradients import gradient_rows, mean, own_means, scaled, total

__all__ = ["PART"]


def _draw_step(draw: Random) -> Values:
    while True:
        gradients = [draw.sample(range(1, 10), 2) for _ in range(3)]
        if all(sum(column) % 3 == 0 for column in zip(*gradients, strict=True)):
            break
    return {
        "gradients": gradients,
        "weights": [draw.choice((0.5, 1.5, 2.5))] * 2,
        "rate": draw.choice((0.1, 0.2, 0.3)),
        "who": draw.choice((1, 2)),
    }


def _step_rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("weights, on every worker", str(given["weights"])),
        ("learning rate", str(given["rate"])),
        *gradient_rows(given),
    ]


def _stepped(given: Values, gradient: list[float], rate: float | None = None) -> list[float]:
    rate = given["rate"] if rate is None else rate
    return [
        weight - rate * slope for weight, slope in zip(given["weights"], gradient, strict=True)
    ]


def _alone(given: Values) -> list[float]:
    return _stepped(given, given["gradients"][given["who"]])


STEP = Questions(
    _draw_step,
    _step_rows,
    (
        Question(
            "gradient",
            1,
            "the gradient that all three workers step with in synchronous data parallelism",
            Number(
                mean,
                (
                    Mistake(total, "this is the sum. The loss is a mean over all samples."),
                    Mistake(
                        lambda given: scaled(total(given), 1 / 2),
                        "this divides by two. How many workers are there?",
                    ),
                    Mistake(
                        lambda given: given["gradients"][0],
                        "this is worker 0's own gradient: the others do not count.",
                    ),
                    Mistake(
                        own_means,
                        "this averages over the elements of one worker. Average what stands in "
                        "the same place.",
                    ),
                ),
                "Sum element by element first.",
            ),
        ),
        Question(
            "weights",
            2,
            "the weights of every worker after one step of plain SGD",
            Number(
                lambda given: _stepped(given, mean(given)),
                (
                    Mistake(
                        lambda given: _stepped(given, total(given)),
                        "this steps with the sum: three times as far.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, mean(given), -given["rate"]),
                        "this goes uphill. A step goes against the gradient.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, mean(given), 1.0),
                        "this leaves the learning rate out.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, given["gradients"][0]),
                        "this is worker 0's own step. To average the weights before the step "
                        "changes nothing, since they are equal then.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, scaled(mean(given), 1 / 3)),
                        "this divides twice by the number of workers.",
                    ),
                    Mistake(
                        lambda given: scaled(mean(given), given["rate"]),
                        "this is the length of the step. Where does it start?",
                    ),
                ),
                "Weights minus learning rate times gradient, element by element.",
            ),
        ),
        Question(
            "alone",
            1,
            "the weights of worker {who} after the step if nobody exchanges gradients",
            Number(
                _alone,
                (
                    Mistake(
                        lambda given: _stepped(given, mean(given)),
                        "this is the step with the average. What does a worker know by itself?",
                    ),
                    Mistake(
                        lambda given: _stepped(given, given["gradients"][0]),
                        "this is worker 0. Another one is asked for.",
                    ),
                    Mistake(
                        lambda given: _stepped(
                            given, scaled(given["gradients"][given["who"]], 1 / 3)
                        ),
                        "nothing is divided where nothing was added.",
                    ),
                ),
                "Its own gradient is all that it has.",
            ),
        ),
        Question(
            "rate",
            1,
            "the learning rate with which the sum of the gradients gives the same step as their "
            "average",
            Number(
                lambda given: given["rate"] / 3,
                (
                    Mistake(
                        lambda given: given["rate"] * 3,
                        "the sum is longer than the average, and this makes it longer still.",
                    ),
                    Mistake(
                        lambda given: given["rate"],
                        "with the same rate, the sum steps three times as far.",
                    ),
                    Mistake(
                        lambda given: given["rate"] / 2,
                        "how many gradients are in the sum?",
                    ),
                ),
                "Rate times gradient has to stay the same.",
            ),
        ),
        Question(
            "after",
            1,
            "each worker steps alone with plain SGD, and then the weights are averaged; compared "
            "with averaging the gradients first, the weights are",
            Choice(
                {
                    "the same": "",
                    "different": "",
                    "the same if the gradients are": "only where all gradients are equal",
                },
                "the same",
                (
                    Mistake("different", "work it out with your own numbers."),
                    Mistake(
                        "the same if the gradients are",
                        "work it out with your own numbers: these gradients are not equal.",
                    ),
                ),
                "Work it out with your own numbers.",
            ),
        ),
    ),
)

PART = Part("01/step", 1, "One synchronous step", 6, 2, STEP)
