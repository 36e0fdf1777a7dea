"""03/micro_gradients: compute gradients of microbatches with equal and with unequal tokens."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    gradients = draw.sample(range(1, 13), 4)
    while sum(gradients) % 4:
        gradients = draw.sample(range(1, 13), 4)
    total, tokens = draw.choice((10, 16, 20, 25)), [0]  # hundreds of tokens: easy to divide by
    while sum(tokens) != total:
        tokens = draw.sample(range(1, 10), 4)
    return {
        "gradients": gradients,
        "rate": draw.choice((0.01, 0.02, 0.05, 0.1)),
        "tokens": [[100 * count for count in tokens[:2]], [100 * count for count in tokens[2:]]],
        "token_gradients": [draw.sample(range(1, 10), 2) for _ in range(2)],
    }


PART = Part(
    "03/micro_gradients",
    1,
    "What microbatches add up to",
    8,
    2,
    asked(
        _draw,
        [
            (
                "one GPU",
                "four equal microbatches; gradients of their mean losses: {gradients[0]}, "
                "{gradients[1]}, {gradients[2]}, {gradients[3]}",
            ),
            ("its learning rate", "{rate}"),
            (
                "rank 0 of two",
                "{tokens[0][0]} tokens with a mean gradient of {token_gradients[0][0]} and "
                "{tokens[0][1]} tokens with a mean gradient of {token_gradients[0][1]}",
            ),
            (
                "rank 1 of two",
                "{tokens[1][0]} tokens with a mean gradient of {token_gradients[1][0]} and "
                "{tokens[1][1]} tokens with a mean gradient of {token_gradients[1][1]}",
            ),
        ],
        number(
            "mean",
            "on one GPU: the gradient of the mean loss over all four microbatches",
            "sum(gradients) / 4",
            "All four have the same number of samples, so all count alike.",
            {
                "sum(gradients)": "this is the sum. The loss over all of them is a mean.",
                "gradients[-1]": "this is only the last gradient. The others count too.",
                "answer / 4": "this divides by four twice.",
            },
        ),
        number(
            "undivided",
            "what is in `.grad` after four backward passes of the mean losses, if no loss is "
            "divided",
            "sum(gradients)",
            "What does a backward pass do with the content of `.grad`?",
            {
                "answer / 4": "nothing divides. A backward pass is independent of other passes.",
                "gradients[-1]": "this would be right if each pass overwrote `.grad`. Does it?",
                "0": "this is right after `zero_grad`.",
            },
        ),
        number(
            "rate",
            "the learning rate with which plain SGD goes as far with `mean` in `.grad` as with "
            "`undivided` in `.grad` and the GPU's learning rate",
            "4 * rate",
            "A step is rate times gradient. One factor is smaller now. What about the other?",
            {
                "rate / 4": "this is the inverse: it makes up for a missing division.",
                "rate": "this would be right if both gradients were equal.",
                "rate * sum(gradients)": "this is the step itself, rate times `.grad`.",
            },
        ),
        number(
            "adam",
            "Adam gets undivided losses from its first step on: how many times as long is a step "
            "as with divided ones? Leave out epsilon and weight decay.",
            "1",
            "By what does Adam divide a gradient, and how does that grow with the gradient?",
            {
                "4": "this is right for SGD. Adam divides by a root of mean squared gradients.",
                "2": "both of Adam's moments grow, and the root is taken of one.",
                "1 / 4": "the divisor grows with the squared gradient. Is a root taken of it?",
            },
        ),
        number(
            "mean_of_means",
            "on two ranks under DDP: the gradient that they step with, if every mean loss is "
            "divided by 2, the number of microbatches on its rank",
            "added_up / 4",
            "Every microbatch counts alike: on a rank, and then over the ranks.",
            {
                "true": "this weighs by tokens. Neither the script nor DDP does that.",
                "mean_of_true_means": "this weighs by tokens. The script halves every mean loss.",
                "added_up": "this is the sum of four means. What divides them?",
                "added_up / 2": "this divides once. Both the script and DDP divide.",
            },
        ),
        number(
            "true",
            "the gradient of the mean loss over all tokens of both ranks",
            "true",
            "Sum over tokens: a mean times its number of tokens is a sum.",
            {
                "added_up / 4": "this is the mean of four means: few tokens count like many.",
                "mean_of_true_means": "this is right on each rank, but ranks differ in tokens.",
                "sum(totals) / 4": "this divides the sum by the number of microbatches.",
            },
        ),
        number(
            "factor",
            "losses are now sums over tokens, as with `reduction='sum'`: the factor by which both "
            "ranks must multiply each of their sums before backward, so that DDP leaves `true` "
            "in `.grad`",
            "2 / sum(counts)",
            "DDP sums over both ranks, and divides by their number. What should be the result?",
            {
                "answer / 2": "then the sum over both ranks is right, but DDP still divides it.",
                "answer / 4": "this divides by the number of ranks, although DDP does so as well.",
                "1 / counts[0]": "this is the mean over the tokens of rank 0. What about rank 1?",
                "2 * answer": "the sums of the microbatches are added up to the sum over all "
                "tokens. Nothing divides by the number of microbatches.",
                "1": "this factor changes nothing: `.grad` grows with the tokens.",
            },
        ),
        where={
            "counts": "[sum(rank) for rank in tokens]",  # tokens of each rank
            "pairs": "[list(zip(*rank)) for rank in zip(tokens, token_gradients)]",
            "totals": "[sum(count * mean for count, mean in rank) for rank in pairs]",
            "true": "sum(totals) / sum(counts)",
            "mean_of_true_means": "(totals[0] / counts[0] + totals[1] / counts[1]) / 2",
            "added_up": "sum(map(sum, token_gradients))",
        },
    ),
)
