"""01/step: one step of synchronous data parallelism, worked out by hand."""

from __future__ import annotations

from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, choice, number
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
            "the gradient that all three workers step with in synchronous data parallelism",
            "mean",
            "Sum element by element first.",
            {
                "total": "this is the sum. The loss is a mean over all samples.",
                "[one / 2 for one in total]": "this divides by two. How many workers are there?",
                "gradients[0]": "this is worker 0's own gradient: the others do not count.",
                "own_means": "this averages over the elements of one worker.",
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
                "[rate * one for one in mean]": "this is the step. Where does it start?",
            },
            points=2,
        ),
        number(
            "alone",
            "the weights of worker {who} after the step if nobody exchanges gradients",
            "stepped(gradients[who], rate)",
            "Its own gradient is all that it has.",
            {
                "stepped(mean, rate)": "this is the step with the average.",
                "stepped(gradients[0], rate)": "this is worker 0. Another one is asked for.",
                "stepped(gradients[who], rate / 3)": "nothing is divided where nothing was added.",
            },
        ),
        number(
            "rate",
            "the learning rate with which the sum gives the same step as the average",
            "rate / 3",
            "Rate times gradient has to stay the same.",
            {
                "rate * 3": "the sum is longer than the average, and this makes it longer still.",
                "rate": "with the same rate, the sum steps three times as far.",
                "rate / 2": "how many gradients are in the sum?",
            },
        ),
        choice(
            "after",
            "if each worker steps alone with plain SGD and the weights are averaged, they are",
            {
                "the same": "as with averaged gradients",
                "different": "",
                "the same if the gradients are": "only where all gradients are equal",
            },
            "the same",
            "Work it out with your own numbers.",
            {
                "different": "work it out with your own numbers.",
                "the same if the gradients are": "your gradients are not equal: work it out.",
            },
        ),
        where={
            **SUMS,
            "stepped": "lambda slopes, rate: [w - rate * g for w, g in zip(weights, slopes)]",
        },
    ),
)
