"""02/uneven: compute averages over three ranks with batches of different sizes."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    large = draw.choice((16, 24, 32))
    sizes = [large, large, draw.choice((4, 8))]
    gradients = draw.sample(range(1, 13), 3)
    right = [draw.randint(size // 2, size - 1) for size in sizes]
    return {"sizes": sizes, "gradients": gradients, "right": right}


def _rows(given: Values) -> list[tuple[str, str]]:
    ranks = zip(given["sizes"], given["gradients"], given["right"], strict=True)
    text = "{} samples, whose mean gradient is {}; {} of them classified right"
    return [(f"rank {rank}", text.format(*values)) for rank, values in enumerate(ranks)]


PART = Part(
    "02/uneven",
    1,
    "The mean of means",
    7,
    2,
    asked(
        _draw,
        _rows,
        number(
            "ddp",
            "the gradient with which all ranks step under DDP",
            "mean_of_means",
            "An all-reduce sums, and DDP divides by the number of ranks.",
            {
                "total / n": "this weighs each rank by its samples. DDP does not count samples.",
                "sum(gradients)": "this is the sum. DDP divides by the number of ranks.",
                "sum(gradients[:2]) / 2": "this leaves out the last rank, which takes part too.",
            },
        ),
        number(
            "true",
            "the gradient of the mean loss over all samples",
            "total / n",
            "Sum over samples: a rank's mean times its number of samples is its sum.",
            {
                "mean_of_means": "this is the mean of means over unequal numbers of samples.",
                "total / 3": "this divides the sum over all samples by the number of ranks.",
                "sum(gradients) / n": "this adds means as if each were one sample's gradient.",
            },
            points=2,
        ),
        number(
            "factor",
            "each rank multiplies its mean loss by a factor that depends only on the numbers of "
            "samples, so that DDP's average is the gradient of the mean over all samples: the "
            "factor of rank 2",
            "3 * sizes[2] / n",
            "Rank 2's sum must be divided by the number of all samples. DDP divides by 3 already.",
            {
                "answer / 3": "this is its share of the samples. DDP still divides by the number "
                "of ranks.",
                "1 / answer": "this is the inverse: a rank with few samples must count less.",
                "1": "this factor changes nothing.",
                "(3 * total / n - sum(gradients[:2])) / gradients[2]": "this is right for these "
                "gradients only, and if ranks 0 and 1 have the factor 1. Every rank has a factor, "
                "computed from numbers of samples alone.",
            },
        ),
        number(
            "weight",
            "under DDP, without such factors: how many times as much a sample of rank 2 counts "
            "as a sample of rank 0",
            "sizes[0] / sizes[2]",
            "Each rank's mean counts 1/3. Over how many samples is that third divided?",
            {
                "1 / answer": "this is the inverse: which rank has fewer samples?",
                "1": "this would be right if all batches were equally large.",
            },
        ),
        number(
            "accuracy",
            "the accuracy over all samples",
            "100 * sum(right) / n",
            "Count all samples that are classified right, and all samples.",
            {
                "100 * sum(hits / size for hits, size in zip(right, sizes)) / 3": "this is the "
                "mean of three accuracies: the few samples of rank 2 count a third.",
                "100 * sum(right) / (3 * sizes[0])": "this assumes as many samples on rank 2 as "
                "on rank 0.",
            },
            unit="%",
        ),
        where={
            "n": "sum(sizes)",
            "mean_of_means": "sum(gradients) / 3",
            "total": "sum(size * gradient for size, gradient in zip(sizes, gradients))",
        },
    ),
)
