"""The values of 01/averages and 01/step: gradients small enough to average by hand."""

from __future__ import annotations

from random import Random

from dtlab.grading.questions.answers import Choice, Mistake, Number, Question, Questions, Values

__all__ = ["AVERAGES", "STEP"]


def _draw_gradients(draw: Random) -> Values:
    first, second = draw.sample(range(1, 10), 2), draw.sample(range(1, 10), 2)
    return {"gradients": [first, [2 * b - a for a, b in zip(first, second, strict=True)]]}


def _gradient_rows(given: Values) -> list[tuple[str, str]]:
    return [
        (f"worker {rank}", f"gradient {gradient}")
        for rank, gradient in enumerate(given["gradients"])
    ]


def _total(given: Values) -> list[float]:
    return [sum(column) for column in zip(*given["gradients"], strict=True)]


def _mean(given: Values) -> list[float]:
    return [one / len(given["gradients"]) for one in _total(given)]


def _own_means(given: Values) -> list[float]:
    return [sum(gradient) / len(gradient) for gradient in given["gradients"]]


def _scaled(vector: list[float], factor: float) -> list[float]:
    return [factor * one for one in vector]


AVERAGES = Questions(
    _draw_gradients,
    _gradient_rows,
    (
        Question(
            "sum",
            1,
            "what both workers hold after an all-reduce with SUM",
            Number(
                _total,
                (
                    Mistake(_mean, "this is divided by two already. SUM does not divide."),
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
                _mean,
                (
                    Mistake(_total, "this is the sum. With it, the step is twice as long."),
                    Mistake(
                        _own_means,
                        "this averages over the elements of one worker. Each element of the "
                        "gradient belongs to a weight of its own.",
                    ),
                    Mistake(lambda given: _scaled(_mean(given), 0.5), "this divides twice."),
                    Mistake(
                        lambda given: sum(_mean(given)) / 2,
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

# 01/step -------------------------------------------------------------------------------------


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
        *_gradient_rows(given),
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
                _mean,
                (
                    Mistake(_total, "this is the sum. The loss is a mean over all samples."),
                    Mistake(
                        lambda given: _scaled(_total(given), 1 / 2),
                        "this divides by two. How many workers are there?",
                    ),
                    Mistake(
                        lambda given: given["gradients"][0],
                        "this is worker 0's own gradient: the others do not count.",
                    ),
                    Mistake(
                        _own_means,
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
                lambda given: _stepped(given, _mean(given)),
                (
                    Mistake(
                        lambda given: _stepped(given, _total(given)),
                        "this steps with the sum: three times as far.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, _mean(given), -given["rate"]),
                        "this goes uphill. A step goes against the gradient.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, _mean(given), 1.0),
                        "this leaves the learning rate out.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, given["gradients"][0]),
                        "this is worker 0's own step. To average the weights before the step "
                        "changes nothing, since they are equal then.",
                    ),
                    Mistake(
                        lambda given: _stepped(given, _scaled(_mean(given), 1 / 3)),
                        "this divides twice by the number of workers.",
                    ),
                    Mistake(
                        lambda given: _scaled(_mean(given), given["rate"]),
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
                        lambda given: _stepped(given, _mean(given)),
                        "this is the step with the average. What does a worker know by itself?",
                    ),
                    Mistake(
                        lambda given: _stepped(given, given["gradients"][0]),
                        "this is worker 0. Another one is asked for.",
                    ),
                    Mistake(
                        lambda given: _stepped(
                            given, _scaled(given["gradients"][given["who"]], 1 / 3)
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
