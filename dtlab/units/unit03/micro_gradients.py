"""03/micro_gradients: equal microbatches, and some of other numbers of tokens."""

from __future__ import annotations

from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, number


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
        "tokens": [[100 * one for one in tokens[:2]], [100 * one for one in tokens[2:]]],
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
            "All four have as many samples, so all count alike.",
            {
                "sum(gradients)": "this is the sum. The loss over all of them is a mean.",
                "gradients[-1]": "this is the last one alone. The others have a say too.",
                "answer / 4": "this divides by four twice.",
            },
        ),
        number(
            "undivided",
            "what is in `.grad` after four backward passes of the mean losses, if no loss is "
            "divided",
            "sum(gradients)",
            "What does a backward pass do with what is in `.grad` already?",
            {
                "answer / 4": "nobody has divided. Backward does not know of other passes.",
                "gradients[-1]": "this is so if each pass overwrote what is there. Does it?",
                "0": "this is so after `zero_grad`.",
            },
        ),
        number(
            "rate",
            "with that in `.grad` and its learning rate, plain SGD goes as far as with `mean` in "
            "`.grad` and which learning rate?",
            "4 * rate",
            "A step is rate times gradient. One factor is smaller now: what of the other?",
            {
                "rate / 4": "this is upside down: a rate that makes up for what was not divided.",
                "rate": "then both steps would have the same gradient.",
                "rate * sum(gradients)": "this is the step itself, rate times `.grad`.",
            },
        ),
        number(
            "adam",
            "Adam gets undivided losses from its first step on: how many times as long is a step "
            "as with divided ones? Leave out epsilon and weight decay.",
            "1",
            "What does Adam divide a gradient by, and how does that grow with it?",
            {
                "4": "this is so for SGD. Adam divides by a root of mean squared gradients.",
                "2": "both of Adam's moments grow: the root is taken of one.",
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
                "true": "this weighs by tokens. Neither the script nor DDP does.",
                "mean_of_true_means": "this weighs by tokens. The script halves every mean loss.",
                "added_up": "this is the sum of four means. What divides them?",
                "added_up / 2": "this divides once. The script does so, and DDP does.",
            },
        ),
        number(
            "true",
            "the gradient of the mean loss over all tokens of both ranks",
            "true",
            "Add up over tokens: a mean times its tokens is a sum.",
            {
                "added_up / 4": "this is the mean of four means: few tokens count like many.",
                "mean_of_true_means": "this is right on each rank. But ranks differ in tokens.",
                "sum(totals) / 4": "this divides the sum by the number of microbatches.",
            },
        ),
        number(
            "factor",
            "losses are now sums over tokens, as with `reduction='sum'`: the factor by which both "
            "ranks have to multiply each of their sums before backward, so that DDP leaves `true` "
            "in `.grad`",
            "2 / sum(counts)",
            "DDP adds up what both ranks have, and divides by their number. What is to come out?",
            {
                "answer / 2": "then the sum over both ranks is right, and DDP still divides it.",
                "answer / 4": "this divides by the ranks where DDP does so as well.",
                "1 / counts[0]": "this makes a mean over the tokens of rank 0. And rank 1?",
                "2 * answer": "the sums of microbatches add up to the sum over all of them, and "
                "nobody divides by how many those are.",
                "1": "with this one, nothing changes: `.grad` grows with the tokens.",
            },
        ),
        where={
            "counts": "[sum(rank) for rank in tokens]",  # tokens of each rank
            "pairs": "[list(zip(*rank)) for rank in zip(tokens, token_gradients)]",
            "totals": "[sum(count * one for count, one in rank) for rank in pairs]",
            "true": "sum(totals) / sum(counts)",
            "mean_of_true_means": "(totals[0] / counts[0] + totals[1] / counts[1]) / 2",
            "added_up": "sum(map(sum, token_gradients))",
        },
    ),
)
