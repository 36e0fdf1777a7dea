"""04/activation_bytes: the bytes that a transformer layer keeps for its backward pass.

A layer keeps s b h (34 + 5 a s / h) bytes in 16 bits, with dropout and its attention matrices
(Korthikanti et al. 2022, "Reducing activation recomputation", equation 1).
"""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, formula, number


def _draw(draw: Random) -> Values:
    head, heads = draw.choice((64, 128)), draw.choice((16, 20, 24, 32, 40))
    return {
        "sequence": head * draw.choice((2, 3, 4, 8, 12, 16, 32)),
        "micro_batch": draw.choice((2, 4, 8)),
        "heads": heads,
        "hidden": head * heads,
        "layers": draw.choice((24, 32, 36, 40, 48)),
    }


_QUESTIONS = asked(
    _draw,
    [
        ("s, tokens of a sequence", "{sequence}"),
        ("b, sequences of a microbatch", "{micro_batch}"),
        ("h, hidden size", "{hidden}"),
        ("a, attention heads", "{heads}"),
        ("L, layers", "{layers}"),
    ],
    number(
        "layer",
        "what one layer keeps: with dropout, attention matrices kept, nothing recomputed",
        "layer",
        "Compute s b h and a s / h first.",
        {
            "34 * sbh": "this leaves out the attention matrices, s x s for each head.",
            "(34 + matrices) * sbh": "this counts the elements of one attention matrix in "
            "each head. How many bytes are kept for each element?",
            "2 * layer": "the formula counts bytes: 2 for each element are included already.",
        },
        unit="MB",
    ),
    number(
        "no_dropout",
        "the same without dropout",
        "(32 + 2 * matrices) * sbh",
        "Go through the table line by line: which lines are there only because of dropout?",
        {
            "(32 + 5 * matrices) * sbh": "this subtracts the two masks of s b h. There is "
            "dropout inside attention, too.",
            "(32 + 4 * matrices) * sbh": "this subtracts the masks. In attention, the output of "
            "dropout is kept besides its input: without dropout that is one tensor.",
            "(34 + 2 * matrices) * sbh": "there are masks outside of attention as well.",
        },
        unit="MB",
    ),
    number(
        "fused",
        "without dropout, and with fused attention, which keeps no tensor of size a x s x s",
        "32 * sbh",
        "Which lines of the table are left without dropout and without these tensors?",
        {
            "34 * sbh": "this is right with dropout. There are masks outside of attention.",
            "(32 + 2 * matrices) * sbh": "softmax's output is an attention matrix as well.",
            "5 * matrices * sbh": "this is what fused attention saves. What is left?",
        },
        unit="MB",
    ),
    number(
        "selective",
        "the part of `layer` that selective recomputation saves: it keeps the inputs of "
        "attention's core, and recomputes all tensors of size a x s x s in the backward pass",
        "100 * 5 * matrices * sbh / layer",
        "Which lines of the table are gone? What part of `layer` were they?",
        {
            "100 - answer": "this is the part that is left.",
            "3 / 5 * answer": "this leaves the output of softmax in memory.",
            "100 * 5 * matrices / 34": "this compares the savings with what is left.",
        },
        unit="%",
    ),
    number(
        "full",
        "what all layers together keep from the forward pass, if each is recomputed from "
        "its input in the backward pass",
        "layers * 2 * sbh",
        "How many elements does the input of a layer have, and how many bytes has an element?",
        {
            "2 * sbh": "this is one layer. The input of every layer is kept.",
            "answer / 2": "this counts elements. Each element has 2 bytes.",
            "answer * 17": "this is selective recomputation. A full one keeps only inputs.",
            "answer + layer": "this adds the layer that is recomputed, which was not kept.",
        },
        unit="MB",
    ),
    choice(
        "most",
        "which of these saves the most bytes of `layer`",
        {
            "no_dropout": "training without dropout",
            "fused": "fused attention",
            "halved": "half of the microbatch",
        },
        formula("'fused' if fused_more else 'halved'"),
        "Write the savings of each of them as a multiple of s b h.",
        {
            "no_dropout": "this saves masks and dropout's output. Is anything larger?",
            formula("'halved' if fused_more else 'fused'"): "compute a s / h, and then compare "
            "half of everything with all of 5 a s / h.",
        },
    ),
    where={
        "sbh": "sequence * micro_batch * hidden / 1e6",
        "matrices": "heads * sequence / hidden",
        "layer": "(34 + 5 * matrices) * sbh",
        # At least 2 matrices are drawn, so no dropout (2 + 3 matrices) never saves the most.
        "fused_more": "5 * matrices > (34 + 5 * matrices) / 2",
    },
)

PART = Part("04/activation_bytes", 1, "What a layer keeps", 5, 2, _QUESTIONS)
