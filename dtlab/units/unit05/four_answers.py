"""05/four_answers: the model states of one model under four precision policies.

16    Rajbhandari et al. 2020, "ZeRO", section 3.1
18    EleutherAI's cookbook, by default; Bekman's "Machine Learning Engineering"
20    Nanotron, in "The Ultra-Scale Playbook"
8     teaching texts that keep nothing in fp32
"""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, choices, formula, number

_TOTALS: Final = {  # bytes per parameter
    "mixed": 16,
    "mixed_fp32_grads": 18,
    "mixed_fp32_accumulation": 20,
    "half_only": 8,
}


def _draw(draw: Random) -> Values:
    parameters = draw.randrange(60, 800) / 10  # billions
    return {
        "parameters": parameters,
        "ranks": draw.choice((4, 8, 16, 32)),
        "card": draw.choice((40, 80, 141)) * 10**9,
        "text": round(parameters * draw.choice(list(_TOTALS.values())), 1),  # GB
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("your model", f"{given['parameters']:g} billion parameters, trained with Adam"),
        ("ranks", str(given["ranks"])),
        ("bytes of one GPU", f"{given['card']:,}".replace(",", " ")),
    ]


_MASTER = "this keeps the whole master copy on each rank. It is optimizer state"

QUESTIONS = asked(
    _draw,
    _rows,
    choice(
        "policy",
        "a text says that training your model takes {text:g} GB: which policy does it assume",
        tuple(_TOTALS),
        formula("nearest[0]"),
        "Divide GB by billions of parameters to get bytes per parameter.",
        {
            formula("nearest[1]"): "this is the second nearest policy: divide exactly.",
            formula("'mixed' if nearest[0] == 'half_only' else 'half_only'"): "divide GB by "
            "billions of parameters: how many bytes does each parameter take?",
        },
    ),
    number(
        "stage_1",
        "the model states on each of your ranks at stage 1, a list of four: mixed, "
        "mixed_fp32_grads, mixed_fp32_accumulation, half_only",
        "stage_1",
        "For each policy: weights and gradients are whole; the optimizer state is divided.",
        {
            "gb((8, 8), (10, 8), (12, 8), (4, 4))": f"{_MASTER}, which is divided.",
            "gb((4, 12), (6, 12), (4, 16), (4, 4))": "this divides the buffer, which "
            "accumulates whole gradients at stage 1.",
            "gb((0, 16), (0, 18), (0, 20), (0, 8))": "this divides everything, as stage 3 does.",
        },
        unit="GB",
    ),
    number(
        "stage_2",
        "the same at stage 2",
        "gb((2, 14), (2, 16), (2, 18), (2, 6))",
        "Only the weights stay whole, and all four policies have the same weights.",
        {
            "gb((2, 14), (2, 16), (6, 14), (2, 6))": "this keeps the buffer whole. At stage 2 a "
            "rank accumulates only the gradients that it owns.",
            "gb((6, 10), (6, 12), (6, 14), (2, 6))": f"{_MASTER}.",
            "stage_1": "this is stage 1.",
        },
        unit="GB",
    ),
    number(
        "ranks",
        "the fewest ranks on which the model states fit at stage 3, in the same order",
        "cards(16, 18, 20, 8)",
        "For each policy, divide the bytes of the model by the bytes of a GPU, and round up.",
        {
            "cards(16, 16, 16, 8)": "this uses 16 bytes for the first three. Add up each policy.",
            "cards(8, 10, 12, 8)": "the first three policies have two fp32 moments.",
            "[count - 1 for count in answer]": "each of these is one rank short: round up.",
        },
        unit="ranks",
        exact=True,
        points=2,
    ),
    choices(
        "divided",
        "the kinds of bytes that stage 2 divides under mixed_fp32_accumulation",
        {
            "weights": "",
            "gradients": "",
            "buffer": "the fp32 buffer for gradients",
            "master": "the master copy",
            "moments": "Adam's moments",
            "activations": "",
        },
        {"gradients", "buffer", "master", "moments"},
        "What does stage 1 divide, and what does stage 2 add?",
        {
            "activations": "look at activations again: each rank has its own samples.",
            "weights": "look at the weights again: which stage divides them?",
            "buffer": "look at the buffer again: which gradients does a rank add up at stage 2?",
            "master": "look at the master copy again: which rank updates which part of it?",
            "gradients": "look at the gradients again: stage 2 divides them, too.",
            "moments": "look at the moments again: stage 1 already divides them.",
        },
    ),
    where={
        "ceil": ceil,
        "totals": _TOTALS,
        "nearest": "sorted(totals, key=lambda name: abs(totals[name] * parameters - text))",
        # Pairs: bytes per parameter that every rank keeps, and bytes that are divided
        "gb": "lambda *pairs: [parameters * (whole + cut / ranks) for whole, cut in pairs]",
        "stage_1": "gb((4, 12), (6, 12), (8, 12), (4, 4))",
        "cards": "lambda *sizes: [ceil(size * parameters * 1e9 / card) for size in sizes]",
    },
)

PART = Part("05/four_answers", 1, "One model, four answers", 6, 2, QUESTIONS)
