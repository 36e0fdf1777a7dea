"""The values of 04/activation_bytes: what a transformer layer keeps for its backward pass.

Bytes per layer are s b h (34 + 5 a s / h) in 16 bits, with dropout, attention matrices kept
(Korthikanti et al. 2022, "Reducing activation recomputation", equation 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]


def _draw(draw: Random) -> Values:
    head, heads = draw.choice((64, 128)), draw.choice((16, 20, 24, 32, 40))
    return {
        "sequence": head * draw.choice((2, 3, 4, 8, 12, 16, 32)),
        "micro_batch": draw.choice((2, 4, 8)),
        "heads": heads,
        "hidden": head * heads,
        "layers": draw.choice((24, 32, 36, 40, 48)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("s, tokens of a sequence", str(given["sequence"])),
        ("b, sequences of a microbatch", str(given["micro_batch"])),
        ("h, hidden size", str(given["hidden"])),
        ("a, attention heads", str(given["heads"])),
        ("L, layers", str(given["layers"])),
    ]


def _tokens_by_hidden(given: Values) -> float:
    """Elements of one activation: s b h."""
    return float(given["sequence"] * given["micro_batch"] * given["hidden"])


def _matrices(given: Values) -> float:
    """Elements of the attention matrices, in multiples of s b h: a s / h."""
    return float(given["heads"] * given["sequence"] / given["hidden"])


def _megabytes(plain: float, matrices: float = 0.0) -> Callable[[Values], float]:
    """MB of s b h (plain + matrices x a s / h)."""
    return lambda given: _tokens_by_hidden(given) * (plain + matrices * _matrices(given)) / 1e6


def _all_layers(given: Values) -> float:
    """MB that all layers keep with full recomputation."""
    return float(given["layers"] * _megabytes(2)(given))


def _share(of: Callable[[Values], float]) -> Callable[[Values], float]:
    """So much of what a layer keeps, in per cent."""
    return lambda given: 100 * of(given) / _megabytes(34, 5)(given)


_CUTS = {"fused": _megabytes(0, 5), "halved": _megabytes(17, 2.5), "no_dropout": _megabytes(2, 3)}


def _most(given: Values) -> str:
    return max(_CUTS, key=lambda name: _CUTS[name](given))


_mb = partial(number, unit="MB")

_MOST = Choice(
    {
        "no_dropout": "training without dropout",
        "fused": "fused attention",
        "halved": "half of the microbatch",
    },
    _most,
    (
        Mistake(
            "no_dropout",
            "this saves masks, and what dropout puts out in attention. Is there nothing larger?",
        ),
        Mistake(
            lambda given: "halved" if _most(given) == "fused" else "fused",
            "work out a s / h, and then both: half of everything, and all of 5 a s / h.",
        ),
    ),
    "Write what each of them takes away as a multiple of s b h.",
)

ACTIVATION_BYTES = Questions(
    _draw,
    _rows,
    (
        _mb(
            "layer",
            "what one layer keeps: with dropout, attention matrices kept, nothing recomputed",
            _megabytes(34, 5),
            "Work out s b h and a s / h first.",
            (_megabytes(34), "this leaves out the attention matrices, s x s for each head."),
            (
                _megabytes(34, 1),
                "this counts the elements of one attention matrix in each head. How many bytes "
                "are there for each of them?",
            ),
            (
                _megabytes(68, 10),
                "the formula counts bytes: 2 for an element of 16 bits are in it already.",
            ),
        ),
        _mb(
            "no_dropout",
            "the same without dropout",
            _megabytes(32, 2),
            "Go through the table line by line: what is there for dropout alone?",
            (
                _megabytes(32, 5),
                "this takes away the two masks of s b h. There is dropout inside attention, too.",
            ),
            (
                _megabytes(32, 4),
                "this takes away the masks. In attention, what dropout puts out is kept beside "
                "what goes in: without dropout that is one tensor.",
            ),
            (_megabytes(34, 2), "there are masks outside of attention as well."),
        ),
        _mb(
            "fused",
            "without dropout, and with fused attention, which keeps nothing of a x s x s",
            _megabytes(32),
            "Which lines of the table are left, with both switches set?",
            (_megabytes(34), "so it is with dropout on. There are masks outside of attention."),
            (_megabytes(32, 2), "what softmax puts out is an attention matrix as well."),
            (_megabytes(0, 5), "this is what fused attention takes away. What is left?"),
        ),
        number(
            "selective",
            "the part of `layer` that selective recomputation saves: it keeps what goes into "
            "attention's core, and computes all that is a x s x s again in the backward pass",
            _share(_megabytes(0, 5)),
            "Which lines of the table are gone? What part of `layer` were they?",
            (_share(_megabytes(34)), "this is the part that is left."),
            (
                _share(_megabytes(0, 3)),
                "this leaves the output of softmax in memory. It is computed again, too.",
            ),
            (
                lambda given: 100 * 5 * _matrices(given) / 34,
                "this is what is saved beside what is left. Asked for is the part of all.",
            ),
            unit="%",
        ),
        _mb(
            "full",
            "what all layers together keep from the forward pass, if each is computed again from "
            "its input in the backward pass",
            _all_layers,
            "How many elements has the input of a layer, and how many bytes has one of them?",
            (_megabytes(2), "this is one layer. Each one's input is kept."),
            (
                lambda given: _all_layers(given) / 2,
                "this counts elements. One of them has 2 bytes.",
            ),
            (
                lambda given: _all_layers(given) * 17,
                "this is selective recomputation. With full recomputation only inputs are kept.",
            ),
            (
                lambda given: _all_layers(given) + _megabytes(34, 5)(given),
                "this adds the layer that is being computed again: it was not kept.",
            ),
        ),
        Question("most", 1, "which one of these takes most bytes away from `layer`", _MOST),
    ),
)

PART = Part("04/activation_bytes", 1, "What a layer keeps", 5, 2, ACTIVATION_BYTES)
