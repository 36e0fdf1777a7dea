"""04/sixteen_bytes: the model states of each precision policy, in bytes per parameter."""

from __future__ import annotations

from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number

_POLICIES: Final = {
    "fp32": 4 + 4 + 0 + 8,
    "mixed": 2 + 2 + 4 + 8,
    "mixed_fp32_grads": 2 + 4 + 4 + 8,
    "mixed_fp32_accumulation": 2 + 6 + 4 + 8,
    "half_only": 2 + 2 + 0 + 4,
}
"""Bytes per parameter: weights, gradients, master weights, Adam's two moments.

fp32, half_only   arithmetic
mixed             Rajbhandari et al. 2020, "ZeRO", section 3.1
mixed_fp32_grads  EleutherAI's cookbook, by default; Bekman's "Machine Learning Engineering"
mixed_fp32_accumulation   Nanotron, in "The Ultra-Scale Playbook"
"""


def _draw(draw: Random) -> Values:
    budget = draw.choice((24, 40, 48, 80)) * 2**30
    largest = budget / draw.choice((8, 16, 18))  # parameters that just fit under some policy
    return {
        "policy": draw.choice(("mixed_fp32_grads", "mixed_fp32_accumulation")),
        "parameters": round(draw.uniform(0.945, 0.985) * largest / 1e9, 2),  # billions
        "budget": budget,
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("your policy", given["policy"]),
        ("your model", f"{given['parameters']:g} billion parameters, trained with Adam"),
        ("memory of one GPU", f"{given['budget']:,} bytes".replace(",", " ")),
    ]


_QUESTIONS = asked(
    _draw,
    _rows,
    number(
        "pieces",
        "bytes per parameter under your policy, as a list of four: weights, gradients (with "
        "any buffer for them), master weights, Adam's moments",
        "[2, gradients, 4, 8]",
        "fp32 takes 4 bytes, 16 bits take 2. How many tensors of each kind are there?",
        {
            "[2, gradients, 4, 4]": "Adam keeps two moments for each parameter.",
            "[2, gradients, 0, 8]": "what are the 16-bit weights computed from after each step?",
            "[2, 2, 4, 8]": "these are 16-bit gradients only. What does your policy say?",
            "[2, 10 - gradients, 4, 8]": "how many sets of gradients are held? Which types?",
            "[4, gradients, 4, 8]": "the weights with which forward and backward compute have "
            "16 bits.",
            "[2, gradients, 2, 8]": "a 16-bit master weight is no more exact than the weight.",
        },
        exact=True,
    ),
    number(
        "state",
        "the model states under your policy: weights, gradients, master weights and moments "
        "of all parameters",
        "state",
        "Add up the bytes of one parameter. For a billion of them, the sum is in GB.",
        {
            "16 * parameters": "this takes 16 bytes per parameter. Is that your policy?",
            "2 * parameters": "these are the 16-bit weights alone.",
            "8 * parameters": "this would be right if nothing were kept in fp32.",
            "state - 8 * parameters": "8 bytes per parameter are missing, as many as Adam's "
            "moments take.",
        },
        unit="GB",
    ),
    number(
        "missing",
        "a text claims: training needs four times the 16-bit weights. How much of `state` "
        "does that leave out?",
        "state - 8 * parameters",
        "The text counts four times 2 bytes per parameter. How many more does `state` count?",
        {
            "8 * parameters": "this is what the text counts. What does it leave out?",
            "state": "this is all of it. The text counts a part.",
            "state - 4 * parameters": "this subtracts four bytes. The text counts four times two.",
        },
        unit="GB",
    ),
    number(
        "ratio",
        "the model states under `mixed` as a multiple of those under `fp32`",
        "policies['mixed'] / policies['fp32']",
        "Write down the four pieces of both, and add them up.",
        {
            "0.5": "texts often claim this. Weights and gradients are halved. What is added?",
            "0.75": "weights and gradients are halved. One of the four is missing.",
            "1.25": "this adds masters to fp32 weights or gradients. Those have 16 bits.",
        },
    ),
    choices(
        "fits",
        "under which policies the model states fit the GPU",
        tuple(_POLICIES),
        formula("fitting(1e9)"),
        "For each policy, compare bytes per parameter times parameters with the GPU's bytes.",
        {
            formula("fitting(2**30)"): "this compares GB with GiB: write both in bytes.",
            formula("policies.keys() - fitting(1e9)"): "this is the opposite.",
            "half_only": "look at `half_only` again: how many bytes per parameter is it?",
            "fp32": "look at `fp32` again: add up all that it keeps.",
        },
    ),
    choices(
        "halved",
        "an ordinary fp32 model is trained with Adam and DDP, its forward pass now under "
        "`torch.autocast` with bf16: which of these take half as many bytes as before?",
        {
            "weights": "the parameters that the optimizer steps on",
            "gradients": "what is in .grad",
            "moments": "Adam's moments",
            "inputs": "the inputs that linear layers keep for the backward pass",
            "traffic": "what DDP sends",
        },
        {"inputs"},
        "Which tensors does autocast cast, and which keep the dtype of the model?",
        {
            "weights": "look at the weights again: autocast casts a copy of them.",
            "gradients": "look at .grad again: it has the dtype of its parameter.",
            "traffic": "look at DDP again: it sends what is in .grad.",
            "moments": "look at the moments again: they have the dtype of their parameter.",
            "inputs": "look at the linear layers again: in which dtype do they compute?",
        },
    ),
    where={
        "policies": _POLICIES,
        "state": "policies[policy] * parameters",
        "gradients": "policies[policy] - 2 - 4 - 8",  # 4 or 6
        "fitting": "lambda giga: {"
        "name for name, each in policies.items() if each * parameters * giga <= budget}",
    },
)

PART = Part("04/sixteen_bytes", 1, "Bytes per parameter", 5, 1, _QUESTIONS)
