"""06/kept: the activations of a layer that a rank saves for backward, by kind of parallelism.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", Table 2:
16 bits, with dropout, and with saved attention matrices unless they are recomputed.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number
from dtlab.predict.transformer import activation_bytes

_PLANS: Final[dict[str, dict[str, Any]]] = {
    "tensor": {},
    "sequence": {"sequence_parallel": True},
    "selective": {"recompute": "selective"},
    "both": {"sequence_parallel": True, "recompute": "selective"},
    "full": {"recompute": "full"},
}


def _draw(draw: Random) -> Values:
    heads = draw.choice((32, 40, 48, 64, 96))
    given: dict[str, Any] = {
        "sequence": draw.choice((2048, 4096, 8192)),
        "micro_batch": draw.choice((1, 2, 4)),
        "heads": heads,
        "hidden": 128 * heads,
        "layers": draw.choice((24, 32, 36, 40, 48)),
        "ranks": draw.choice((2, 4, 8)),
    }
    sizes = sorted(given["layers"] * size / 1e3 for size in _kept(given).values())
    lower, upper = draw.choice(list(pairwise(sizes)))
    given["room"] = round((lower + upper) / 2, 1)  # GB
    return given if upper > 1.2 * lower and 2 < given["room"] < 80 else _draw(draw)


def _kept(given: Values) -> dict[str, float]:
    """MB of saved activations of a layer, by plan."""
    sizes = [given[name] for name in ("sequence", "micro_batch", "hidden", "heads", "ranks")]
    return {plan: activation_bytes(*sizes, **how) / 1e6 for plan, how in _PLANS.items()}


megabytes = partial(number, unit="MB")

QUESTIONS = asked(
    _draw,
    [
        ("s, tokens of a sequence", "{sequence}"),
        ("b, sequences of a microbatch", "{micro_batch}"),
        ("h, hidden size", "{hidden}"),
        ("a, attention heads", "{heads}"),
        ("L, layers on every rank", "{layers}"),
        ("t, ranks", "{ranks}"),
        ("memory for activations", "{room:g} GB"),
    ],
    megabytes(
        "tensor",
        "the activations of one layer that a rank saves, with tensor parallelism only",
        "kept['tensor']",
        "Go through the table line by line: is the tensor between f and g, or outside?",
        {
            "kept['sequence']": "this divides everything. Tensors outside of f and g are whole.",
            "sbh * (34 + 5 * matrices)": "this is for a single rank. What is divided?",
            "sbh * (10 + 24 / t)": "this leaves out the attention matrices, s x s for each head.",
            "sbh * (10 + 24 / t + 5 * matrices)": "a rank has the matrices of only its heads.",
        },
    ),
    megabytes(
        "sequence",
        "the same with sequence parallelism",
        "kept['sequence']",
        "Tensor parallelism alone leaves some lines of the table whole on every rank. Which of "
        "these does sequence parallelism divide?",
        {
            "kept['tensor']": "this is without sequence parallelism.",
            "sbh * (4 + (30 + 5 * matrices) / t)": "this divides norms and dropout. Are inputs "
            "divided?",
            "sbh * (2 + (32 + 5 * matrices) / t)": "both masks of sbh are divided by tokens.",
        },
    ),
    megabytes(
        "floor",
        "the limit of a rank's bytes with tensor parallelism only, for very many ranks",
        "10 * sbh",
        "With more and more ranks the divided lines approach zero.",
        {
            "0": "this is the limit with sequence parallelism. What is it without?",
            "34 * sbh": "some of these lines are between f and g.",
            "8 * sbh": "there are masks outside of attention and MLP.",
            "answer / t": "these are the lines that are not divided.",
        },
    ),
    megabytes(
        "both",
        "with sequence parallelism and selective recomputation",
        "kept['both']",
        "Take your `sequence`, without the tensors of size a x s x s.",
        {
            "kept['selective']": "this is selective recomputation with tensor parallelism only.",
            "34 * sbh": "this is not divided. What does sequence parallelism divide?",
            "kept['sequence']": "this still has attention matrices.",
            "sbh * (34 + 3 * matrices) / t": "the output of softmax is recomputed, too.",
        },
    ),
    megabytes(
        "full",
        "tensor parallelism only, with full recomputation, which saves the layer's input",
        "kept['full']",
        "How many elements and bytes does the input of a layer have, and on which ranks is it?",
        {
            "answer / t": "is the input of a layer between f and g?",
            "answer / 2": "this counts elements. Each has 2 bytes.",
            "answer * layers": "this is all layers. Take one layer.",
        },
    ),
    choices(
        "fits",
        "the plans whose saved activations of all layers fit in your memory",
        {
            "tensor": "tensor parallelism only",
            "sequence": "with sequence parallelism",
            "selective": "tensor parallelism, selective recomputation",
            "both": "sequence parallelism and selective recomputation",
            "full": "tensor parallelism, full recomputation",
        },
        formula("frozenset(plan for plan in kept if layers * kept[plan] / 1e3 <= room)"),
        "Multiply the bytes of one layer by L for each plan, and compare in GB.",
        {
            "tensor": "look at `tensor` again: multiply your first answer by L.",
            "sequence": "look at `sequence` again: multiply your second answer by L.",
            "selective": "look at `selective` again: what is left of `tensor` without as/h?",
            "both": "look at `both` again: multiply your fourth answer by L.",
            "full": "look at `full` again: multiply your fifth answer by L.",
        },
    ),
    where={
        "by_plan": _kept,
        "kept": "by_plan(given)",
        "t": "ranks",
        "sbh": "sequence * micro_batch * hidden / 1e6",  # MB
        "matrices": "heads * sequence / hidden",  # elements of attention matrices per sbh
    },
)

PART = Part("06/kept", 1, "What a layer keeps", 5, 2, QUESTIONS)
