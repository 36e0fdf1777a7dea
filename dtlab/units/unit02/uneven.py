"""The values of 02/uneven: three ranks with batches of different sizes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Mistake, Number, Question, Questions, Values

__all__ = ["PART"]


def _draw(draw: Random) -> Values:
    large = draw.choice((16, 24, 32))
    sizes = [large, large, draw.choice((4, 8))]
    gradients = draw.sample(range(1, 13), 3)
    right = [draw.randint(size // 2, size - 1) for size in sizes]
    return {"sizes": sizes, "gradients": gradients, "right": right}


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        (
            f"rank {rank}",
            f"{size} samples, whose mean gradient is {gradient}; {right} of them classified right",
        )
        for rank, (size, gradient, right) in enumerate(
            zip(given["sizes"], given["gradients"], given["right"], strict=True)
        )
    ]


def _mean_of_means(given: Values) -> float:
    return float(sum(given["gradients"])) / 3


def _true_mean(given: Values) -> float:
    pairs = zip(given["sizes"], given["gradients"], strict=True)
    return float(sum(size * gradient for size, gradient in pairs)) / sum(given["sizes"])


def _last_size(given: Values) -> int:
    return int(given["sizes"][-1])


def _factor(given: Values) -> float:
    return 3 * _last_size(given) / sum(given["sizes"])


def _times(given: Values) -> float:
    return float(given["sizes"][0]) / _last_size(given)


def _accuracy(given: Values) -> float:
    return 100 * float(sum(given["right"])) / sum(given["sizes"])


def _mean_accuracy(given: Values) -> float:
    pairs = zip(given["right"], given["sizes"], strict=True)
    return 100 * float(sum(right / size for right, size in pairs)) / 3


def _number(
    name: str, points: float, prompt: str, right: Callable[[Values], float], hint: str,
    *mistakes: tuple[Callable[[Values], float], str], unit: str = "",
) -> Question:  # fmt: skip
    known = tuple(Mistake(wrong, why) for wrong, why in mistakes)
    return Question(name, points, prompt, Number(right, known, hint, unit=unit))


UNEVEN = Questions(
    _draw,
    _rows,
    (
        _number(
            "ddp",
            1,
            "the gradient that all ranks step with under DDP",
            _mean_of_means,
            "An all-reduce adds up, and DDP divides by the number of ranks.",
            (_true_mean, "this weighs each rank by its samples. DDP does not know of samples."),
            (
                lambda given: sum(given["gradients"]),
                "this is the sum. DDP divides by the number of ranks.",
            ),
            (
                lambda given: sum(given["gradients"][:2]) / 2,
                "this leaves the last rank out. It takes part in every all-reduce.",
            ),
        ),
        _number(
            "true",
            2,
            "the gradient of the mean loss over all samples",
            _true_mean,
            "Add up over samples: a rank's mean times its samples is its sum.",
            (_mean_of_means, "this is the mean of three means. Ranks have not as many samples."),
            (
                lambda given: sum(
                    size * one
                    for size, one in zip(given["sizes"], given["gradients"], strict=True)
                )
                / 3,
                "this divides the sum over all samples by the number of ranks.",
            ),
            (
                lambda given: sum(given["gradients"]) / sum(given["sizes"]),
                "this adds up means as if each were one sample's gradient.",
            ),
        ),
        _number(
            "factor",
            1,
            "the factor by which rank 2 has to multiply its mean loss, so that DDP's average is "
            "the gradient of the mean over all samples",
            _factor,
            "Its sum over all samples has to be divided by all samples, and DDP divides by 3.",
            (
                lambda given: _factor(given) / 3,
                "this is its share of the samples. DDP still divides by the number of ranks.",
            ),
            (lambda given: 1 / _factor(given), "this is upside down: few samples count little."),
            (lambda given: 1.0, "with this one, nothing changes."),
        ),
        _number(
            "weight",
            1,
            "under DDP, without such factors: how many times as much does a sample of rank 2 "
            "count as one of rank 0?",
            _times,
            "Each rank's mean counts 1/3. Among how many samples is that shared out?",
            (lambda given: 1 / _times(given), "this is upside down: who shares with fewer?"),
            (lambda given: 1.0, "this would be so if all batches were equally large."),
        ),
        _number(
            "accuracy",
            1,
            "the accuracy over all samples",
            _accuracy,
            "Count all that are right, and all that there are.",
            (_mean_accuracy, "this is the mean of three accuracies: a few samples count a third."),
            (
                lambda given: 100 * sum(given["right"]) / (3 * given["sizes"][0]),
                "this counts as many samples on rank 2 as on rank 0.",
            ),
            unit="%",
        ),
    ),
)

PART = Part("02/uneven", 1, "The mean of means", 7, 2, UNEVEN)
