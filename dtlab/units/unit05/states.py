"""05/states: bytes of model states by ZeRO stage and number of ranks, and what fits on a GPU.

Mixed precision as in the ZeRO paper: 2 bytes of weights, 2 of gradients, 12 of optimizer state
(Rajbhandari et al. 2020, sections 3.1 and 5; their Figure 1 has the three stages at 7.5 B).
"""

from __future__ import annotations

from math import ceil, floor
from random import Random
from typing import Any, Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, number

_BUDGETS: Final = {40: 42_949_672_960, 80: 85_899_345_920, 141: 150_754_820_096}
"""Bytes that drivers report for GPUs sold as 40, 80 and 141 GB: 40960, 81920 and 143771 MiB."""


def _draw(draw: Random) -> Values:
    label = draw.choice((40, 80, 80, 141))
    sold = draw.random() < 0.5
    given: dict[str, Any] = {
        "stage": draw.choice((1, 2)),
        "small": draw.randrange(50, 145) / 10,  # billions
        "few": draw.choice((4, 6, 8, 12, 16)),
        "large": draw.randrange(120, 260),  # billions
        "budget": label * 10**9 if sold else _BUDGETS[label],
    }
    larger, smaller = sorted(draw.sample(_totals(given), 2), reverse=True)
    left = given["budget"] / 1e9 - draw.uniform(smaller, larger)  # so that some stages fit
    given["activations"] = round(left)
    instructive = 4 < left < 0.7 * label and 0 < len(_fitting(given)) < 3
    return given if instructive else _draw(draw)


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("your small model", f"{given['small']:g} billion parameters, on {given['few']} ranks"),
        ("your large model", f"{given['large']} billion parameters"),
        ("bytes of one GPU", f"{given['budget']:,}".replace(",", " ")),
        ("your stage", str(given["stage"])),
    ]


def _split(given: Values, stage: int) -> list[float]:
    """GB of weights, gradients and optimizer state of the small model on each rank."""
    whole, part = given["small"], given["small"] / given["few"]
    return [2 * (part if stage > 2 else whole), 2 * (part if stage > 1 else whole), 12 * part]


def _totals(given: Values) -> list[float]:
    return [sum(_split(given, stage)) for stage in (1, 2, 3)]


def _fitting(given: Values) -> frozenset[str]:
    """The stages at which the small model fits."""
    room = given["budget"] / 1e9 - given["activations"]
    return frozenset(f"stage {n}" for n, total in enumerate(_totals(given), 1) if total <= room)


QUESTIONS = asked(
    _draw,
    _rows,
    number(
        "pieces",
        "your small model at your stage, on each rank: [weights, gradients, optimizer state]",
        "split(given, stage)",
        "They take 2, 2 and 12 bytes per parameter. Which of the three does your stage divide?",
        {
            "[2 * small, 2 * small, 12 * small]": "nothing is divided here, as in DDP.",
            "split(given, 3)": "this divides all three, as stage 3 does.",
            "split(given, 3 - stage)": "this is the other of stages 1 and 2.",
            "[6 * small, answer[1], 8 * small / few]": "this counts the master copy as weights. "
            "It is optimizer state, which is divided.",
        },
        unit="GB",
    ),
    number(
        "totals",
        "all model states of your small model on each rank at stages 1, 2 and 3, as a list",
        _totals,
        "For each stage, which bytes per parameter does each rank keep, and which are divided?",
        {
            "[answer[0] - 2 * small, *answer[1:]]": "this leaves out the gradients at stage 1, as "
            "a common formula does. Then stage 2 would take more than stage 1.",
            "[answer[2]] * 3": "this divides everything at each stage. Only stage 3 does.",
            "[total / 2 for total in answer]": "this is 8 bytes per parameter. What is in fp32?",
        },
        unit="GB",
        points=2,
    ),
    number(
        "floor",
        "the limit of your small model's states on each rank at your stage, for very many ranks",
        "(6 - 2 * stage) * small",
        "With more and more ranks the divided part approaches zero. What is left?",
        {
            "0": "this is the limit at stage 3. What does your stage leave whole?",
            "2 * stage * small": "this is the limit of the other of stages 1 and 2.",
            "16 * small": "these are the states on a single rank.",
        },
        unit="GB",
    ),
    number(
        "ranks",
        "the fewest ranks on which the model states of your large model alone fit at stage 3",
        "ceil(cards)",
        "Divide all bytes of the model by the bytes of one GPU, and round up.",
        {
            "ceil(cards / 2)": "this has no fp32 master copy, and no fp32 moments.",
            "floor(cards)": "these are too few by a fraction of a rank: round up.",
            "ceil(cards * 2**30 / 1e9)": "this divides GB by GiB. Write both in bytes.",
        },
        unit="ranks",
        exact=True,
    ),
    number(
        "ranks_beside",
        "the same if activations take {activations} GB on every rank",
        "ceil(16e9 * large / (budget - activations * 1e9))",
        "Each rank holds its own activations. How many bytes of each GPU remain?",
        {
            "ceil(cards)": "this is without activations.",
            "ceil((16 * large + activations) * 1e9 / budget)": "this divides the activations "
            "among the ranks. No stage of ZeRO does that.",
        },
        unit="ranks",
        exact=True,
    ),
    choices(
        "fits",
        "at which stages your small model fits together with {activations} GB of activations",
        ("stage 1", "stage 2", "stage 3"),
        _fitting,
        "Compare your `totals` with the bytes that activations leave on the GPU.",
        {f"stage {n}": f"look at stage {n} again, and add activations." for n in (1, 2, 3)},
    ),
    where={
        "ceil": ceil,
        "floor": floor,
        "split": _split,
        "cards": "16e9 * large / budget",  # the GPUs that the large model fills
    },
)

PART = Part("05/states", 1, "Bytes by ZeRO stage and ranks", 8, 2, QUESTIONS)
