"""05/four_answers: one model, four policies, and four numbers of cards.

16    Rajbhandari et al. 2020, "ZeRO", section 3.1
18    EleutherAI's cookbook, by default; Bekman's "Machine Learning Engineering"
20    Nanotron, in "The Ultra-Scale Playbook"
8     seen in teaching texts; nothing is kept in fp32
"""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, choice, choices, formula, number

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
        ("bytes of one card", f"{given['card']:,}".replace(",", " ")),
    ]


_MASTER = "this has the master copy whole on each rank. It is optimizer state"

QUESTIONS = asked(
    _draw,
    _rows,
    choice(
        "policy",
        "a text says that training your model takes {text:g} GB: which policy is that",
        tuple(_TOTALS),
        formula("nearest[0]"),
        "GB over billions of parameters are bytes per parameter.",
        {
            formula("nearest[1]"): "this is the nearest other one: divide exactly.",
            formula("'mixed' if nearest[0] == 'half_only' else 'half_only'"): "divide GB by "
            "billions of parameters: how many bytes has each one?",
        },
    ),
    number(
        "stage_1",
        "the model states on each of your ranks at stage 1, a list of four: mixed, "
        "mixed_fp32_grads, mixed_fp32_accumulation, half_only",
        "stage_1",
        "For each policy: bytes of weights and gradients, whole; the others over the ranks.",
        {
            "gb((8, 8), (10, 8), (12, 8), (4, 4))": f"{_MASTER}, and divided.",
            "gb((4, 12), (6, 12), (4, 16), (4, 4))": "this divides the buffer for gradients "
            "at stage 1. It takes in whole gradients.",
            "gb((0, 16), (0, 18), (0, 20), (0, 8))": "this divides everything, as stage 3 does.",
        },
        unit="GB",
    ),
    number(
        "stage_2",
        "the same at stage 2",
        "gb((2, 14), (2, 16), (2, 18), (2, 6))",
        "What stays whole now is the same under all four.",
        {
            "gb((2, 14), (2, 16), (6, 14), (2, 6))": "this has the buffer whole. At stage 2 a "
            "rank adds up only what it owns.",
            "gb((6, 10), (6, 12), (6, 14), (2, 6))": f"{_MASTER}.",
            "stage_1": "this is stage 1.",
        },
        unit="GB",
    ),
    number(
        "ranks",
        "the fewest ranks on which the model states fit at stage 3, in the same order",
        "cards(16, 18, 20, 8)",
        "Bytes of the model, over those of a card, rounded up: four times.",
        {
            "cards(16, 16, 16, 8)": "this takes 16 bytes for all. Add up each policy.",
            "cards(8, 10, 12, 8)": "the first three have fp32 moments, and there are two of them.",
            "[one - 1 for one in answer]": "each of these is one short: round up.",
        },
        exact=True,
        points=2,
    ),
    choices(
        "divided",
        "under mixed_fp32_accumulation: what stage 2 divides",
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
            "buffer": "look at the buffer again: who adds up which gradients at stage 2?",
            "master": "look at the master copy again: who steps on it?",
            "gradients": "look at the gradients again: that is what stage 2 adds.",
            "moments": "look at the moments again: stage 1 divides them already.",
        },
    ),
    where={
        "ceil": ceil,
        "totals": _TOTALS,
        "nearest": "sorted(totals, key=lambda name: abs(totals[name] * parameters - text))",
        # at so many bytes per parameter on every rank, and so many that are divided
        "gb": "lambda *pairs: [parameters * (whole + cut / ranks) for whole, cut in pairs]",
        "stage_1": "gb((4, 12), (6, 12), (8, 12), (4, 4))",
        "cards": "lambda *sizes: [ceil(size * parameters * 1e9 / card) for size in sizes]",
    },
)

PART = Part("05/four_answers", 1, "One model, four answers", 6, 2, QUESTIONS)
