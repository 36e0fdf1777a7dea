"""The values of 06/kept: what a rank keeps of a layer for backward, by what is divided.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", Table 2:
16 bits, dropout, attention matrices kept where nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number
from dtlab.predict.activations import activation_bytes

__all__ = ["PART"]

_PLANS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tensor": ("tensor parallelism alone", {}),
    "sequence": ("with sequence parallelism", {"sequence_parallel": True}),
    "selective": ("tensor parallelism, selective recomputation", {"recompute": "selective"}),
    "both": (
        "sequence parallelism and selective recomputation",
        {"sequence_parallel": True, "recompute": "selective"},
    ),
    "full": ("tensor parallelism, full recomputation", {"recompute": "full"}),
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
    lower, upper = draw.choice(list(pairwise(sorted(_gigabytes(given).values()))))
    given["room"] = round((lower + upper) / 2, 1)
    return given if upper > 1.2 * lower and 2 < given["room"] < 80 else _draw(draw)


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("s, tokens of a sequence", str(given["sequence"])),
        ("b, sequences of a microbatch", str(given["micro_batch"])),
        ("h, hidden size", str(given["hidden"])),
        ("a, attention heads", str(given["heads"])),
        ("L, layers on every rank", str(given["layers"])),
        ("t, ranks", str(given["ranks"])),
        ("your room for them", f"{given['room']:g} GB"),
    ]


def _kept(plan: str, ranks: int | None = None) -> Callable[[Values], float]:
    """MB of a layer, by plan."""
    return lambda given: (
        activation_bytes(
            given["sequence"], given["micro_batch"], given["hidden"], given["heads"],
            ranks or given["ranks"], **_PLANS[plan][1],
        ) / 1e6
    )  # fmt: skip


def _gigabytes(given: Values) -> dict[str, float]:
    """Of all layers, by plan."""
    return {plan: given["layers"] * _kept(plan)(given) / 1e3 for plan in _PLANS}


def _formula(whole: float, divided: float, matrices: float = 0) -> Callable[[Values], float]:
    """MB: so many bytes of sbh on every rank, so many over t, and so many of as/h over t."""

    def megabytes(given: Values) -> float:
        s, b, h = given["sequence"], given["micro_batch"], given["hidden"]
        over_t = divided + matrices * given["heads"] * s / h
        return float(s * b * h * (whole + over_t / given["ranks"]) / 1e6)

    return megabytes


def _fitting(given: Values) -> frozenset[str]:
    sizes = _gigabytes(given).items()
    return frozenset(plan for plan, size in sizes if size <= given["room"])


_mb = partial(number, unit="MB")

_FITS = Choices(
    {plan: words for plan, (words, _) in _PLANS.items()},
    _fitting,
    (
        Mistake("tensor", "look at `tensor` again: your first answer, times L."),
        Mistake("sequence", "look at `sequence` again: your second answer, times L."),
        Mistake("selective", "look at `selective` again: what is left of `tensor` without as/h?"),
        Mistake("both", "look at `both` again: your fourth answer, times L."),
        Mistake("full", "look at `full` again: your fifth answer, times L."),
    ),
    "Each of them for one layer, times L, in GB.",
)

KEPT = Questions(
    _draw,
    _rows,
    (
        _mb(
            "tensor",
            "what a rank keeps of one layer: tensor parallelism alone",
            _kept("tensor"),
            "Line by line of the table: is it between f and g, or outside?",
            (_kept("sequence"), "this divides everything. What is there before f and behind g?"),
            (_kept("tensor", 1), "this is one rank alone. What is divided by heads, by features?"),
            (_formula(10, 24), "this leaves out the attention matrices, s x s for each head."),
            (
                lambda given: _formula(10, 24)(given) + _formula(0, 0, 5)(given) * given["ranks"],
                "how many heads' matrices has a rank?",
            ),
        ),
        _mb(
            "sequence",
            "the same with sequence parallelism",
            _kept("sequence"),
            "Which lines of the table does it divide that were whole before?",
            (_kept("tensor"), "this is without it."),
            (
                _formula(4, 30, 5),
                "this divides norms and dropout. The inputs of column parallel layers are kept "
                "by tokens, too: they are gathered again.",
            ),
            (_formula(2, 32, 5), "there are two masks of sbh, and each token has its own part."),
        ),
        _mb(
            "floor",
            "what is left for every rank under tensor parallelism alone, however many ranks share "
            "a layer",
            _formula(10, 0),
            "With ever more ranks the divided lines go to nothing.",
            (lambda given: 0, "so it is with sequence parallelism. And without?"),
            (_formula(34, 0), "some of these lines are between f and g."),
            (_formula(8, 0), "there are masks outside of attention and MLP."),
            (_formula(0, 10), "these are the lines that no rank divides."),
        ),
        _mb(
            "both",
            "with sequence parallelism and selective recomputation",
            _kept("both"),
            "Your `sequence`, without what is a x s x s.",
            (_kept("selective"), "this is selective recomputation with tensor parallelism alone."),
            (_formula(34, 0), "this is not divided. What was, with sequence parallelism?"),
            (_kept("sequence"), "this still has attention matrices."),
            (_formula(0, 34, 3), "what softmax puts out is computed again, too."),
        ),
        _mb(
            "full",
            "tensor parallelism alone with full recomputation, which keeps the layer's input",
            _kept("full"),
            "How many elements has the input of a layer, with how many bytes, and on which ranks?",
            (_formula(0, 2), "is the input of a layer between f and g?"),
            (_formula(1, 0), "this counts elements. One of them has 2 bytes."),
            (
                lambda given: given["layers"] * _kept("full")(given),
                "this is all layers. Asked for is one.",
            ),
        ),
        Question("fits", 1, "which plans keep no more than your room, of all layers", _FITS),
    ),
)

PART = Part("06/kept", 1, "What a layer keeps", 5, 2, KEPT)
