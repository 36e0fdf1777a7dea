"""06/holds: which tensors are whole on every rank, a shard, or a part of a sum.

Shoeybi et al. 2019, "Megatron-LM", section 3; with sequence parallelism Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.
"""

from __future__ import annotations

from math import sqrt
from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choices, formula, number

_TENSORS: Final = {
    "norm": "the output of the norm before attention",
    "queries": "the queries",
    "product": "the output of the projection's matrix product, before g",
    "after": "the output of g after the projection",
    "gelu": "the output of GELU",
    "bias": "the bias of the MLP's second layer",
    "before_f": "the gradient of the MLP's input, before f sums it",
    "first_grad": "the gradient of the MLP's first weight",
    "norm_grad": "the gradient of the norm's weights, before any collective for it",
}
_LETTERS: Final = "ABCDEFGHI"


def _draw(draw: Random) -> Values:
    names = list(_TENSORS)
    draw.shuffle(names)
    return {
        "tensors": dict(zip(names, _LETTERS, strict=True)),  # the letter of each tensor
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
        ("sums of your squared gradients", f"of shards, rank by rank: {given['squares']}; "
         f"of whole parameters, on each rank: {given['common']}"),
    ]  # fmt: skip


def _tensors(name: str, prompt: str, right: set[str], hint: str, **mistakes: str) -> Question:
    """A question for a set of tensors. `mistakes` has a message on each tensor."""

    def letters(given: Values) -> frozenset[str]:
        return frozenset(given["tensors"][key] for key in right)

    wrong = {
        formula(f"tensors[{key!r}]"): f"look again at {_TENSORS[key].partition(',')[0]}: {why}"
        for key, why in mistakes.items()
    }
    return choices(name, prompt, _LETTERS, letters, hint, wrong)


def _names(
    name: str, prompt: str, options: dict[str, str], right: set[str], hint: str, **mistakes: str
) -> Question:
    """A question whose answer is a set of names. `mistakes` has a hint for each wrong name."""
    wrong = {key: f"look at `{key}` again: {why}" for key, why in mistakes.items()}
    return choices(name, prompt, options, right, hint, wrong)


QUESTIONS = asked(
    _draw,
    _rows,
    _tensors(
        "whole",
        "tensor parallelism only: the tensors that are whole and equal on every rank",
        {"norm", "after", "bias", "norm_grad"},
        "Which tensors are computed outside of f and g, identically on every rank?",
        norm="is it between f and g?",
        product="each rank has summed only over its own heads.",
        before_f="it has passed only through this rank's part of the first weight.",
        bias="is it added before the sum, or after it?",
        norm_grad="f's backward comes before the norm's. What does it leave on each rank?",
        after="what does an all-reduce leave on each rank?",
        queries="which heads does a rank have?",
        gelu="which features does a rank have?",
        first_grad="which part of the weight does a rank have?",
    ),
    _tensors(
        "sums",
        "tensor parallelism only: the tensors of which each rank has only a part of a sum",
        {"product", "before_f"},
        "Which tensors do the all-reduces sum, in forward and in backward?",
        after="is it before the all-reduce, or after it?",
        product="over which features does a rank sum?",
        before_f="through which weights has this gradient passed, on one rank?",
        norm_grad="which collective came just before it in backward, and for which tokens?",
        gelu="each feature is complete on one rank. Which shape does the rank's part have?",
        queries="each head is complete on one rank. Which shape does the rank's part have?",
        first_grad="it is complete for the rank's part of the weight.",
    ),
    _tensors(
        "tokens",
        "with sequence parallelism: the tensors of which each rank has only its own tokens",
        {"norm", "after"},
        "Which tensors are between a reduce-scatter and the next all-gather?",
        queries="they come after the all-gather.",
        gelu="it comes after the all-gather.",
        product="it is the input of the reduce-scatter, which still has all tokens.",
        before_f="it is the input of a reduce-scatter, which still has all tokens.",
        norm="it comes before the all-gather.",
        after="it is the output of a reduce-scatter.",
        bias="does a parameter have tokens?",
        norm_grad="does a parameter's gradient have tokens?",
    ),
    _tensors(
        "sums_sp",
        "with sequence parallelism: the tensors that are only a part of a sum on each rank",
        {"product", "before_f", "norm_grad"},
        "Take your `sums`. Which parameters are now applied to only some of the tokens?",
        norm_grad="over which tokens does a rank sum?",
        bias="this is the bias itself, not its gradient.",
        after="what does a reduce-scatter leave on each rank?",
        norm="each token is complete.",
        product="a reduce-scatter sums, too. Which tensor?",
        before_f="a reduce-scatter sums, too. Which tensor?",
    ),
    _names(
        "pair",
        "where f and g communicate, with tensor parallelism only",
        {
            "f_forward": "f in the forward pass",
            "f_backward": "f in the backward pass",
            "g_forward": "g in the forward pass",
            "g_backward": "g in the backward pass",
        },
        {"f_backward", "g_forward"},
        "What is the input there, and what must the output be? Only parts of a sum need a call.",
        f_forward="every rank already has the same x.",
        g_backward="y is a sum. What is the gradient of one of its parts?",
        f_backward="each rank has used x with its own weights, and has a part of its gradient.",
        g_forward="each rank has a part of the sum, and the next norm needs the whole sum.",
    ),
    number(
        "calls",
        "a rank's all-reduces for all layers of your step, in a list: forward, backward",
        "[2 * n, 2 * n]",
        "How many pairs of f and g does a layer have, and how many layers and microbatches?",
        {
            "[2 * n, 0]": "backward also sums gradients: see f.",
            "[n, n]": "this is one pair of f and g per layer. Which parts of a layer have a pair?",
            "[4 * n, 4 * n]": "in each pass, one of f and g does not communicate.",
            "[2 * layers, 2 * layers]": "this is one microbatch. You have more.",
        },
        exact=True,
    ),
    _names(
        "alike",
        "where dropout must drop the same elements on every rank; tensor parallelism only",
        {
            "embedding": "on the embedding's output",
            "matrix": "on attention weights, inside the heads",
            "residual": "on the output of g, before the residual stream",
            "residual_sp": "the same, with sequence parallelism",
        },
        {"embedding", "residual"},
        "Does every rank have the same tensor, or does each have a different part?",
        matrix="rank 0 and rank 1 have different heads.",
        residual_sp="which tokens does a rank have there?",
        residual="with different masks, would all ranks continue with the same tensor?",
        embedding="with different masks, would all ranks continue with the same tensor?",
    ),
    number(
        "norm",
        "the norm of all your gradients together, which every rank must use to clip",
        "sqrt(sum(squares) + common)",
        "The dense model has each parameter once: add up its squares, then take the root.",
        {
            "sqrt(sum(squares) + len(squares) * common)": "this counts whole parameters once per "
            "rank. Count them once.",
            "sqrt(squares[0] + common)": "this is only rank 0's part. Add the other shards.",
            "sqrt(sum(squares))": "this leaves out the whole parameters.",
            "sum(squares) + common": "this is the square of the norm.",
            "sum(sqrt(square + common) for square in squares)": "norms do not add up. What does?",
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
        "Check each claim on an example of two ranks and a small matrix.",
        gather="which input does the row half need, and what does a rank have before it?",
        bits="does rounding depend on the order of a sum?",
        attention="which parts of a block process each token separately?",
        rows="a weight is stored [out, in]. What do some of its rows compute?",
        row_first="what does each rank have after it, and is GELU of a sum the sum of GELUs?",
        linear="write xW as a sum over parts of x and of W.",
    ),
    where={"sqrt": sqrt, "n": "layers * count"},
)

PART = Part("06/holds", 1, "What a rank holds", 8, 3, QUESTIONS)
