"""The values of 05/four_answers: one model, four policies, and four numbers of cards.

16    Rajbhandari et al. 2020, "ZeRO", section 3.1
18    EleutherAI's cookbook, by default; Bekman's "Machine Learning Engineering"
20    Nanotron, in "The Ultra-Scale Playbook"
8     seen in teaching texts; nothing is kept in fp32
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number
from dtlab.predict.memory import POLICIES, model_states, smallest_world_size

__all__ = ["PART"]

_NAMES: Final = ("mixed", "mixed_fp32_grads", "mixed_fp32_accumulation", "half_only")
_TOTALS: Final = {name: POLICIES[name].total for name in _NAMES}


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


def _gigabytes(given: Values, stage: int) -> list[float]:
    """GB on each rank under the four policies."""
    params = round(given["parameters"] * 1e9)
    states = (model_states(params, stage, given["ranks"], name) for name in _NAMES)
    return [one.total / 1e9 for one in states]


def _by_bytes(*pieces: tuple[float, float]) -> Callable[[Values], list[float]]:
    """GB at so many bytes per parameter on every rank, and so many that are divided."""
    return lambda given: [
        given["parameters"] * (whole + divided / given["ranks"]) for whole, divided in pieces
    ]


def _ranks(given: Values) -> list[int | None]:
    params = round(given["parameters"] * 1e9)
    return [smallest_world_size(params, 3, given["card"], name) for name in _NAMES]


def _cards(given: Values, *sizes: float) -> list[int]:
    return [ceil(size * given["parameters"] * 1e9 / given["card"]) for size in sizes]


def _policy_of_text(given: Values) -> str:
    return min(_NAMES, key=lambda name: abs(_TOTALS[name] * given["parameters"] - given["text"]))


def _next_policy(given: Values) -> str:
    """The wrong one that comes nearest."""
    own = _policy_of_text(given)
    return min(
        (name for name in _NAMES if name != own),
        key=lambda name: abs(_TOTALS[name] * given["parameters"] - given["text"]),
    )


_gb = partial(number, unit="GB")

_OF_TEXT = Choice(
    dict.fromkeys(_NAMES, ""),
    _policy_of_text,
    (
        Mistake(_next_policy, "this is the nearest other one: divide GB by billions, exactly."),
        Mistake(
            lambda given: "half_only" if _policy_of_text(given) != "half_only" else "mixed",
            "divide GB by billions of parameters: how many bytes has each one in the text?",
        ),
    ),
    "GB over billions of parameters are bytes per parameter.",
)

_DIVIDED = Choices(
    {
        "weights": "",
        "gradients": "",
        "buffer": "the fp32 buffer for gradients",
        "master": "the master copy",
        "moments": "Adam's moments",
        "activations": "",
    },
    frozenset({"gradients", "buffer", "master", "moments"}),
    (
        Mistake("activations", "look at activations again: each rank has its own samples."),
        Mistake("weights", "look at the weights again: which stage divides them?"),
        Mistake(
            "buffer",
            "look at the buffer again: from stage 2 on, gradients go to their owners at once.",
        ),
        Mistake("master", "look at the master copy again: who steps on it?"),
        Mistake("gradients", "look at the gradients again: that is what stage 2 adds."),
        Mistake("moments", "look at the moments again: stage 1 divides them already."),
    ),
    "What does stage 1 divide, and what does stage 2 add?",
)

FOUR_ANSWERS = Questions(
    _draw,
    _rows,
    (
        Question(
            "policy",
            1,
            "a text says that training your model takes {text:g} GB, without saying how: which "
            "policy is that",
            _OF_TEXT,
        ),
        _gb(
            "stage_1",
            "the model states on each of your ranks at stage 1, a list of four: mixed, "
            "mixed_fp32_grads, mixed_fp32_accumulation, half_only",
            lambda given: _gigabytes(given, 1),
            "For each policy: bytes of weights and gradients, whole; the others over the ranks.",
            (
                _by_bytes((8, 8), (10, 8), (12, 8), (4, 4)),
                "this has the master copy whole on each rank. It is optimizer state, and divided.",
            ),
            (
                _by_bytes((4, 12), (6, 12), (4, 16), (4, 4)),
                "this divides the buffer for gradients at stage 1. It takes in whole gradients.",
            ),
            (
                _by_bytes((0, 16), (0, 18), (0, 20), (0, 8)),
                "this divides everything, as stage 3 does.",
            ),
        ),
        _gb(
            "stage_2",
            "the same at stage 2",
            lambda given: _gigabytes(given, 2),
            "What stays whole now is the same under all four.",
            (
                _by_bytes((2, 14), (2, 16), (6, 14), (2, 6)),
                "this has the buffer whole. At stage 2 a rank adds up only what it owns.",
            ),
            (
                _by_bytes((6, 10), (6, 12), (6, 14), (2, 6)),
                "this has the master copy whole on each rank. It is optimizer state.",
            ),
            (lambda given: _gigabytes(given, 1), "this is stage 1."),
        ),
        number(
            "ranks",
            "the smallest numbers of ranks on which the model states fit at stage 3, in the same "
            "order",
            _ranks,
            "Bytes of the model, over those of a card, rounded up: four times.",
            (
                lambda given: _cards(given, 16, 16, 16, 8),
                "this takes 16 bytes for all that has a master copy. Add up each policy.",
            ),
            (
                lambda given: _cards(given, 8, 10, 12, 8),
                "the moments of the first three are in fp32, and there are two of them.",
            ),
            (
                lambda given: [one - 1 for one in _cards(given, 16, 18, 20, 8)],
                "each of these is one short: a part of a rank is a rank.",
            ),
            exact=True,
            points=2,
        ),
        Question("divided", 1, "under mixed_fp32_accumulation: what stage 2 divides", _DIVIDED),
    ),
)

PART = Part("05/four_answers", 1, "One model, four answers", 6, 2, FOUR_ANSWERS)
