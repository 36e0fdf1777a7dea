"""01/step: compute one step of synchronous data parallelism by hand."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number
from dtlab.units.unit01.averages import SUMS, gradient_rows


def _draw(draw: Random) -> Values:
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


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("weights, on every worker", str(given["weights"])),
        ("learning rate", str(given["rate"])),
        *gradient_rows(given),
    ]


PART = Part(
    "01/step",
    1,
    "One synchronous step",
    6,
    2,
    asked(
        _draw,
        _rows,
        number(
            "gradient",
            "the gradient that all three workers use in a step of synchronous data parallelism",
            "mean",
            "Sum element by element first.",
            {
                "total": "this is the sum. The loss is a mean over all samples.",
                "[value / 2 for value in total]": "this divides by two. There are more workers.",
                "gradients[0]": "this is worker 0's own gradient, without the other workers'.",
                "worker_means": "this averages over the elements of one worker.",
            },
        ),
        number(
            "weights",
            "the weights of every worker after one step of plain SGD",
            "stepped(mean, rate)",
            "Weights minus learning rate times gradient, element by element.",
            {
                "stepped(total, rate)": "this steps with the sum: three times as far.",
                "stepped(mean, -rate)": "this goes uphill. A step goes against the gradient.",
                "stepped(mean, 1)": "this leaves the learning rate out.",
                "stepped(gradients[0], rate)": "this is worker 0's own step.",
                "stepped(mean, rate / 3)": "this divides twice by the number of workers.",
                "[rate * value for value in mean]": "this is the step. Where does it start?",
            },
            points=2,
        ),
        number(
            "alone",
            "the weights of worker {who} after the step if workers do not exchange gradients",
            "stepped(gradients[who], rate)",
            "The worker has only its own gradient.",
            {
                "stepped(mean, rate)": "this is the step with the average.",
                "stepped(gradients[0], rate)": "this is worker 0. The question names another.",
                "stepped(gradients[who], rate / 3)": "no gradients were added, so do not divide.",
            },
        ),
        number(
            "rate",
            "the learning rate with which the sum gives the same step as the average",
            "rate / 3",
            "The product of learning rate and gradient must stay the same.",
            {
                "rate * 3": "the sum is longer than the average, and this makes it longer still.",
                "rate": "with the same learning rate, the sum steps three times as far.",
                "rate / 2": "how many gradients are in the sum?",
            },
        ),
        choice(
            "after",
            "if each worker steps alone with plain SGD and the weights are averaged, they are",
            {
                "the same": "as with averaged gradients",
                "different": "",
                "the same if the gradients are": "only if all gradients are equal",
            },
            "the same",
            "Compute both with your numbers.",
            {
                "different": "compute both with your numbers.",
                "the same if the gradients are": "your gradients are not equal. Compute both.",
            },
        ),
        where={
            **SUMS,
            "stepped": "lambda slopes, rate: [w - rate * g for w, g in zip(weights, slopes)]",
        },
    ),
)
