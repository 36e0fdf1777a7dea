"""The values of 03/micro_gradients: equal microbatches, and some of other numbers of tokens."""

from __future__ import annotations

from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_COUNT, _RANKS = 4, 2
_TOTALS = (10, 16, 20, 25)  # hundreds of tokens: easy to divide by


def _draw(draw: Random) -> Values:
    gradients = draw.sample(range(1, 13), _COUNT)
    while sum(gradients) % _COUNT:
        gradients = draw.sample(range(1, 13), _COUNT)
    total, tokens = draw.choice(_TOTALS), [0]
    while sum(tokens) != total:
        tokens = draw.sample(range(1, 10), 2 * _RANKS)
    return {
        "gradients": gradients,
        "rate": draw.choice((0.01, 0.02, 0.05, 0.1)),
        "tokens": [[100 * one for one in tokens[:2]], [100 * one for one in tokens[2:]]],
        "token_gradients": [draw.sample(range(1, 10), 2) for _ in range(_RANKS)],
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    four = ", ".join(map(str, given["gradients"]))
    ranks = zip(given["tokens"], given["token_gradients"], strict=True)
    return [
        ("one GPU", f"four equal microbatches; gradients of their mean losses: {four}"),
        ("its learning rate", str(given["rate"])),
        *(
            (
                f"rank {rank} of two",
                " and ".join(
                    f"{count} tokens with a mean gradient of {gradient}"
                    for count, gradient in zip(tokens, gradients, strict=True)
                ),
            )
            for rank, (tokens, gradients) in enumerate(ranks)
        ),
    ]


# One GPU, four equal microbatches ------------------------------------------------------------


def _sum(given: Values) -> float:
    return float(sum(given["gradients"]))


def _mean(given: Values) -> float:
    return _sum(given) / _COUNT


def _last(given: Values) -> float:
    return float(given["gradients"][-1])


# Two ranks, microbatches of other numbers of tokens ------------------------------------------


def _of_ranks(given: Values) -> list[tuple[int, int]]:
    """For each rank: its tokens, and the sum of their gradients."""
    return [
        (sum(tokens), sum(count * one for count, one in zip(tokens, gradients, strict=True)))
        for tokens, gradients in zip(given["tokens"], given["token_gradients"], strict=True)
    ]


def _tokens(given: Values) -> int:
    return sum(tokens for tokens, _ in _of_ranks(given))


def _total(given: Values) -> int:
    return sum(total for _, total in _of_ranks(given))


def _true(given: Values) -> float:
    return _total(given) / _tokens(given)


def _added_up(given: Values) -> float:
    return float(sum(map(sum, given["token_gradients"])))


def _mean_of_means(given: Values) -> float:
    return _added_up(given) / (2 * _RANKS)


def _mean_of_true_means(given: Values) -> float:
    """Each rank weighs its tokens alike, and DDP the ranks."""
    return sum(total / tokens for tokens, total in _of_ranks(given)) / _RANKS


MICRO_GRADIENTS = Questions(
    _draw,
    _rows,
    (
        number(
            "mean",
            "on one GPU: the gradient of the mean loss over all four microbatches",
            _mean,
            "All four have as many samples, so all count alike.",
            (_sum, "this is the sum. The loss over all of them is a mean."),
            (_last, "this is the last one alone. The others have a say too."),
            (lambda given: _mean(given) / _COUNT, "this divides by four twice."),
        ),
        number(
            "undivided",
            "what is in `.grad` after four backward passes of the mean losses, if no loss is "
            "divided",
            _sum,
            "What does a backward pass do with what is in `.grad` already?",
            (_mean, "nobody has divided. Backward does not know how many passes there will be."),
            (_last, "this is so if each pass overwrote what is there. Or is it added to?"),
            (lambda given: 0.0, "this is so after `zero_grad`."),
        ),
        number(
            "rate",
            "with that in `.grad` and its learning rate, plain SGD goes as far as with `mean` in "
            "`.grad` and which learning rate?",
            lambda given: _COUNT * given["rate"],
            "A step is rate times gradient. One factor is smaller now: what of the other?",
            (
                lambda given: given["rate"] / _COUNT,
                "this is upside down: a rate that makes up for what was not divided.",
            ),
            (lambda given: given["rate"], "then both steps would have the same gradient."),
            (
                lambda given: given["rate"] * _sum(given),
                "this is the step itself, rate times `.grad`.",
            ),
        ),
        number(
            "adam",
            "Adam gets undivided losses from its first step on: how many times as long is a step "
            "as with divided ones? Leave out epsilon and weight decay.",
            lambda given: 1,
            "What does Adam divide a gradient by, and how does that grow with it?",
            (
                lambda given: _COUNT,
                "this is so for SGD. Adam divides by a root of mean squared gradients.",
            ),
            (lambda given: _COUNT**0.5, "both of Adam's moments grow: the root is taken of one."),
            (
                lambda given: 1 / _COUNT,
                "this grows the divisor with the square of the gradient. Is a root taken of it?",
            ),
        ),
        number(
            "mean_of_means",
            "on two ranks under DDP: the gradient that they step with, if every mean loss is "
            "divided by 2, the number of microbatches on its rank",
            _mean_of_means,
            "Every microbatch counts alike: on a rank, and then over the ranks.",
            (_true, "this weighs by tokens. Neither the script nor DDP does."),
            (
                _mean_of_true_means,
                "this weighs the tokens of a rank alike. The script halves every mean loss.",
            ),
            (_added_up, "this is the sum of four means. What divides them?"),
            (
                lambda given: _added_up(given) / _RANKS,
                "this divides once. The script does so, and DDP does.",
            ),
        ),
        number(
            "true",
            "the gradient of the mean loss over all tokens of both ranks",
            _true,
            "Add up over tokens: a mean times its tokens is a sum.",
            (_mean_of_means, "this is the mean of four means: few tokens count like many."),
            (
                _mean_of_true_means,
                "this is right on each rank, and then it takes the ranks alike. They have not as "
                "many tokens.",
            ),
            (
                lambda given: _total(given) / (2 * _RANKS),
                "this divides the sum over all tokens by the number of microbatches.",
            ),
        ),
        number(
            "factor",
            "losses are now sums over tokens, as with `reduction='sum'`: the factor by which both "
            "ranks have to multiply each of their sums before backward, so that DDP leaves `true` "
            "in `.grad`",
            lambda given: _RANKS / _tokens(given),
            "DDP adds up what both ranks have, and divides by their number. What is to come out?",
            (
                lambda given: 1 / _tokens(given),
                "then the sum over both ranks is right, and DDP still divides it.",
            ),
            (
                lambda given: 1 / (_RANKS * _tokens(given)),
                "this divides by the ranks where DDP does so as well.",
            ),
            (
                lambda given: 1 / _of_ranks(given)[0][0],
                "this makes a mean over the tokens of rank 0. How many are there in all?",
            ),
            (
                lambda given: 2 * _RANKS / _tokens(given),
                "the sums of microbatches add up to the sum over all of them, and nobody divides "
                "by how many those are.",
            ),
            (lambda given: 1, "with this one, nothing changes: `.grad` grows with the tokens."),
        ),
    ),
)

PART = Part("03/micro_gradients", 1, "What microbatches add up to", 8, 2, MICRO_GRADIENTS)
