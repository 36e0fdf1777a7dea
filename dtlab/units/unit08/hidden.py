"""08/hidden: tokens per rank that hide the messages of a ring, and the memory of scores.

Liu et al. 2023, "Ring attention with blockwise transformers", section 3 and table 2.
"""

from __future__ import annotations

from math import ceil, floor
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number

_FAST, _SLOW = {"A100": (250, 300), "H100": (600, 450)}, (25, 50)


def _draw(draw: Random) -> Values:
    gpu = draw.choice(("A100", "H100"))
    flops, inside = _FAST[gpu]
    return {
        "gpu": gpu,
        "flops": flops + draw.choice((-50, 0, 25, 50)),
        "inside": inside,
        "network": draw.choice(_SLOW),
        "tokens": draw.choice((131072, 196608, 262144)),
        "ranks": draw.choice((8, 16)),
        "heads": draw.choice((32, 64)),
    }


_QUESTIONS = asked(
    _draw,
    [
        ("your GPUs", "{gpu}, {flops} TFLOP/s reached in attention"),
        ("links, one way", "{inside} GB/s inside a node, {network} GB/s across nodes"),
        ("your sequence", "{tokens} tokens on {ranks} ranks, {heads} heads"),
        ("elements", "2 bytes each; as many KV heads as heads"),
    ],
    number(
        "block",
        "the fewest tokens per rank for which a ring hides its messages, without a mask: [inside "
        "a node, across nodes]",
        "[near, far]",
        "A round computes 4 c^2 h operations and sends 2 c h elements. When do both take as long?",
        {
            "[2 * each for each in answer]": "this is with a causal mask.",
            "[each / 2 for each in answer]": "an element has 2 bytes, and both keys and values "
            "travel.",
            "[each / 4 for each in answer]": "these are 4 c^2 h operations and 4 c h bytes.",
            "answer[::-1]": "write the links inside a node first.",
        },
        unit="tokens",
    ),
    number(
        "causal",
        "the same across nodes, with a causal mask in zig-zag order",
        "2 * far",
        "Which part of the operations is left? And of the messages?",
        {
            "far": "this is without a mask.",
            "far / 2": "there is less work to hide the same messages behind.",
            "2 * near": "this is inside a node.",
        },
        unit="tokens",
    ),
    number(
        "most",
        "the most ranks on which your sequence hides the messages of a causal ring across nodes; "
        "the tokens do not have to divide evenly",
        "floor(tokens / (2 * far))",
        "Each rank needs at least the tokens that you have just found.",
        {
            "floor(tokens / far)": "this is without a mask.",
            "ceil(tokens / (2 * far))": "with one rank fewer each has enough tokens.",
            "floor(tokens / (2 * near))": "this is inside a node.",
        },
        unit="ranks",
        exact=True,
    ),
    number(
        "scores",
        "the scores of one layer, if they are written to memory for one sequence: [in one "
        "process, on a rank of Ulysses, on a rank of a ring in one round]",
        "[whole, whole / ranks, whole / ranks ** 2]",
        "One score for each head, query and key. Of which of the three has a rank a part?",
        {
            "[whole, whole / ranks, whole / ranks]": "in a ring both queries and keys are one "
            "block.",
            "[whole, whole / ranks ** 2, whole / ranks]": "Ulysses has all tokens of some heads.",
            "[each / heads for each in answer]": "this is one head.",
            "[each / 2 for each in answer]": "an element has 2 bytes.",
        },
        unit="GB",
    ),
    where={
        "floor": floor,
        "ceil": ceil,
        "near": "1e3 * flops / inside",  # tokens: TFLOP/s over GB/s
        "far": "1e3 * flops / network",
        "whole": "2 * heads * tokens ** 2 / 1e9",
    },
)

PART = Part("08/hidden", 1, "When a ring hides its messages", 7, 2, _QUESTIONS)
