"""06/holds: what is whole on every rank, a shard, or a part of a sum.

Shoeybi et al. 2019, "Megatron-LM", section 3; with sequence parallelism Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.
"""

from __future__ import annotations

from math import sqrt
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Question, Values
from dtlab.grading.questions.declared import asked, choices, formula, number

_TENSORS: Final = {
    "norm": "what the norm before attention puts out",
    "queries": "the queries",
    "product": "what the projection's weight gives, before g",
    "after": "what g gives behind the projection",
    "gelu": "what GELU puts out",
    "bias": "the bias of the MLP's second layer",
    "before_f": "the gradient of what goes into the MLP, before f adds to it",
    "first_grad": "the gradient of the MLP's first weight",
    "norm_grad": "the gradient of the norm's weights, before any call for it",
}
_LETTERS: Final = "ABCDEFGHI"


def _draw(draw: Random) -> Values:
    names = list(_TENSORS)
    draw.shuffle(names)
    return {
        "tensors": dict(zip(names, _LETTERS, strict=True)),  # the letter that each tensor has
        "layers": draw.choice((16, 20, 24, 30, 32, 40)),
        "count": draw.choice((2, 3, 4, 6, 8)),
        "squares": [draw.randrange(10, 90) for _ in range(draw.choice((3, 4)))],
        "common": draw.randrange(10, 60),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    by_letter = sorted((letter, name) for name, letter in given["tensors"].items())
    return [
        *((f"tensor {letter}", _TENSORS[name]) for letter, name in by_letter),
        ("your step", f"{given['layers']} layers, {given['count']} microbatches"),
        ("your gradients, squared and added up", f"of shards, rank by rank: {given['squares']}; "
         f"of whole parameters, on each rank: {given['common']}"),
    ]  # fmt: skip


def _tensors(name: str, prompt: str, right: set[str], hint: str, **mistakes: str) -> Question:
    """A question for a set of tensors. Each mistake is one of them, and what is said of it."""

    def letters(given: Values) -> frozenset[str]:
        return frozenset(given["tensors"][one] for one in right)

    wrong = {
        formula(f"tensors[{one!r}]"): f"look again at {_TENSORS[one].partition(',')[0]}: {why}"
        for one, why in mistakes.items()
    }
    return choices(name, prompt, _LETTERS, letters, hint, wrong)


def _names(
    name: str, prompt: str, options: dict[str, str], right: set[str], hint: str, **mistakes: str
) -> Question:
    """A question for a set of names. Each mistake is one of them, and what is said of it."""
    wrong = {one: f"look at `{one}` again: {why}" for one, why in mistakes.items()}
    return choices(name, prompt, options, right, hint, wrong)


QUESTIONS = asked(
    _draw,
    _rows,
    _tensors(
        "whole",
        "tensor parallelism alone: the tensors that are whole, and the same on every rank",
        {"norm", "after", "bias", "norm_grad"},
        "What goes into f, what comes out of g, and what is done with it on every rank alike?",
        norm="does it belong to the part between f and g?",
        product="each rank has summed over its own heads only.",
        before_f="each rank has seen its own part of the first weight only.",
        bias="where is it added: before the sum, or after it?",
        norm_grad="f's backward comes before the norm's. What does it leave on each rank?",
        after="what is an all-reduce for?",
        queries="which heads has a rank?",
        gelu="which features has a rank?",
        first_grad="of what does a rank have the gradient?",
    ),
    _tensors(
        "sums",
        "tensor parallelism alone: the tensors that each rank has only as a part of a sum",
        {"product", "before_f"},
        "Each all-reduce has something to add up. What is it, forward and backward?",
        after="is it before the all-reduce, or behind it?",
        product="over which features has a rank added up?",
        before_f="through which weights has this gradient come, on one rank?",
        norm_grad="what came just before it in backward, and for which tokens?",
        gelu="all of a feature is on one rank. Which shape has it?",
        queries="all of a head is on one rank. Which shape has it?",
        first_grad="it is complete for what the rank has of the weight.",
    ),
    _tensors(
        "tokens",
        "with sequence parallelism: the tensors of which each rank has its own tokens only",
        {"norm", "after"},
        "Between reduce-scatter and all-gather: what is there?",
        queries="they come behind the all-gather.",
        gelu="it comes behind the all-gather.",
        product="it goes into the reduce-scatter. And what comes out?",
        before_f="it goes into a reduce-scatter. And what comes out?",
        norm="it comes before the all-gather.",
        after="it comes out of a reduce-scatter.",
        bias="does a parameter have tokens?",
        norm_grad="does a parameter's gradient have tokens?",
    ),
    _tensors(
        "sums_sp",
        "with sequence parallelism: the tensors that are only a part of a sum on each rank",
        {"product", "before_f", "norm_grad"},
        "Take your `sums`. Which parameters now see some of the tokens only?",
        norm_grad="over whose tokens has a rank added up?",
        bias="this is the bias itself, not its gradient.",
        after="what does a reduce-scatter leave?",
        norm="each token is there in full.",
        product="a reduce-scatter adds up, too. What?",
        before_f="a reduce-scatter adds up, too. What?",
    ),
    _names(
        "pair",
        "where f and g communicate, with tensor parallelism alone",
        {
            "f_forward": "f in the forward pass",
            "f_backward": "f in the backward pass",
            "g_forward": "g in the forward pass",
            "g_backward": "g in the backward pass",
        },
        {"f_backward", "g_forward"},
        "What goes in there, and what has to come out? Only parts of a sum need a call.",
        f_forward="every rank has the same x already.",
        g_backward="y is a sum. What is the gradient of one of its parts?",
        f_backward="each rank has used x with its own weights. Who knows all that x has done?",
        g_forward="each rank has a part of the sum, and the next norm wants it all.",
    ),
    number(
        "calls",
        "a rank's all-reduces for all layers of your step, in a list: forward, backward",
        "[2 * n, 2 * n]",
        "How many pairs of f and g has a layer? And how many layers and microbatches?",
        {
            "[2 * n, 0]": "backward has gradients to add up: see f.",
            "[n, n]": "this is one pair of f and g in each layer. What is divided in it?",
            "[4 * n, 4 * n]": "in each pass, one of f and g sends nothing.",
            "[2 * layers, 2 * layers]": "this is one microbatch. You have more.",
        },
        exact=True,
    ),
    _names(
        "alike",
        "where dropout has to drop the same elements on every rank; tensor parallelism alone",
        {
            "embedding": "on the embedding's output",
            "matrix": "on attention weights, inside the heads",
            "residual": "on what g gives, before the residual stream",
            "residual_sp": "the same, with sequence parallelism",
        },
        {"embedding", "residual"},
        "Does every rank have this very tensor, or has each a part of its own?",
        matrix="those of rank 0 and of rank 1 are of different heads.",
        residual_sp="whose tokens does a rank have there?",
        residual="with other masks, would the ranks go on from the same tensor?",
        embedding="with other masks, would the ranks go on from the same tensor?",
    ),
    number(
        "norm",
        "the norm of all your gradients together, by which every rank is to clip",
        "sqrt(sum(squares) + common)",
        "The dense model has each parameter once: add up its squares, then take the root.",
        {
            "sqrt(sum(squares) + len(squares) * common)": "whole ones count once for each rank.",
            "sqrt(squares[0] + common)": "this is what rank 0 sees. What do the others see?",
            "sqrt(sum(squares))": "this leaves out the whole parameters.",
            "sum(squares) + common": "this is its square.",
            "sum(sqrt(one + common) for one in squares)": "norms do not add up. What does?",
        },
    ),
    _names(
        "claims",
        "which of these claims hold",
        {
            "rows": "the first rows of `nn.Linear.weight` are a shard of a column parallel layer",
            "gather": "between the column and the row half an all-gather is needed",
            "row_first": "a row parallel layer before GELU would need a call between the halves",
            "linear": "the ranks' products add up to the dense one because a product is linear",
            "bits": "they add up to the same bits as on one rank, because addition is associative",
            "attention": "Megatron's sequence parallelism divides attention by tokens",
        },
        {"rows", "row_first", "linear"},
        "Go through them one by one, with two ranks and a small matrix in mind.",
        gather="what does row parallel take in, and what has column parallel left on each rank?",
        bits="what does rounding do when sums are taken in another order?",
        attention="which parts of a block see one token at a time?",
        rows="a weight is stored [out, in]. What do some of its rows compute?",
        row_first="what does each rank have after it, and what does GELU make of parts of a sum?",
        linear="write xW as a sum over parts of x and of W.",
    ),
    where={"sqrt": sqrt, "n": "layers * count"},
)

PART = Part("06/holds", 1, "Who holds what", 8, 3, QUESTIONS)
