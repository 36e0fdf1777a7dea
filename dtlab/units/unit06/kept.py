"""06/kept: what a rank keeps of a layer for backward, by what is divided.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", Table 2:
16 bits, dropout, attention matrices kept where nothing is recomputed.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, choices, formula, number
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
    sizes = sorted(given["layers"] * one / 1e3 for one in _kept(given).values())
    lower, upper = draw.choice(list(pairwise(sizes)))
    given["room"] = round((lower + upper) / 2, 1)  # GB
    return given if upper > 1.2 * lower and 2 < given["room"] < 80 else _draw(draw)


def _kept(given: Values) -> dict[str, float]:
    """MB of a layer, by plan."""
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
        ("your room for them", "{room:g} GB"),
    ],
    megabytes(
        "tensor",
        "what a rank keeps of one layer: tensor parallelism alone",
        "kept['tensor']",
        "Line by line of the table: is it between f and g, or outside?",
        {
            "kept['sequence']": "this divides everything. What is there before f, behind g?",
            "sbh * (34 + 5 * matrices)": "this is one rank alone. What is divided?",
            "sbh * (10 + 24 / t)": "this leaves out the attention matrices, s x s for each head.",
            "sbh * (10 + 24 / t + 5 * matrices)": "how many heads' matrices has a rank?",
        },
    ),
    megabytes(
        "sequence",
        "the same with sequence parallelism",
        "kept['sequence']",
        "Which lines of the table does it divide that were whole before?",
        {
            "kept['tensor']": "this is without it.",
            "sbh * (4 + (30 + 5 * matrices) / t)": "this divides norms and dropout. And inputs?",
            "sbh * (2 + (32 + 5 * matrices) / t)": "there are two masks of sbh, by tokens.",
        },
    ),
    megabytes(
        "floor",
        "what tensor parallelism alone leaves on each rank, however many share a layer",
        "10 * sbh",
        "With ever more ranks the divided lines go to nothing.",
        {
            "0": "so it is with sequence parallelism. And without?",
            "34 * sbh": "some of these lines are between f and g.",
            "8 * sbh": "there are masks outside of attention and MLP.",
            "answer / t": "these are the lines that no rank divides.",
        },
    ),
    megabytes(
        "both",
        "with sequence parallelism and selective recomputation",
        "kept['both']",
        "Your `sequence`, without what is a x s x s.",
        {
            "kept['selective']": "this is selective recomputation with tensor parallelism alone.",
            "34 * sbh": "this is not divided. What was, with sequence parallelism?",
            "kept['sequence']": "this still has attention matrices.",
            "sbh * (34 + 3 * matrices) / t": "what softmax puts out is computed again, too.",
        },
    ),
    megabytes(
        "full",
        "tensor parallelism alone with full recomputation, which keeps the layer's input",
        "kept['full']",
        "How many elements has the input of a layer, with how many bytes, and on which ranks?",
        {
            "answer / t": "is the input of a layer between f and g?",
            "answer / 2": "this counts elements. One of them has 2 bytes.",
            "answer * layers": "this is all layers. Asked for is one.",
        },
    ),
    choices(
        "fits",
        "which plans keep no more than your room, of all layers",
        {
            "tensor": "tensor parallelism alone",
            "sequence": "with sequence parallelism",
            "selective": "tensor parallelism, selective recomputation",
            "both": "sequence parallelism and selective recomputation",
            "full": "tensor parallelism, full recomputation",
        },
        formula("frozenset(plan for plan in kept if layers * kept[plan] / 1e3 <= room)"),
        "Each of them for one layer, times L, in GB.",
        {
            "tensor": "look at `tensor` again: your first answer, times L.",
            "sequence": "look at `sequence` again: your second answer, times L.",
            "selective": "look at `selective` again: what is left of `tensor` without as/h?",
            "both": "look at `both` again: your fourth answer, times L.",
            "full": "look at `full` again: your fifth answer, times L.",
        },
    ),
    where={
        "by_plan": _kept,
        "kept": "by_plan(given)",
        "t": "ranks",
        "sbh": "sequence * micro_batch * hidden / 1e6",  # MB
        "matrices": "heads * sequence / hidden",  # of attention, for each sbh
    },
)

PART = Part("06/kept", 1, "What a layer keeps", 5, 2, QUESTIONS)
