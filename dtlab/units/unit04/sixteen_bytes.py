"""The values of 04/sixteen_bytes: which bytes of a parameter are what, by policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import Value, number

__all__ = ["PART"]

_POLICIES: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "fp32": (4, 4, 0, 8),
    "mixed": (2, 2, 4, 8),
    "mixed_fp32_grads": (2, 4, 4, 8),
    "mixed_fp32_accumulation": (2, 6, 4, 8),
    "half_only": (2, 2, 0, 4),
}
"""Bytes per parameter: weights, gradients, master weights, Adam's two moments.

fp32, half_only   arithmetic
mixed             Rajbhandari et al. 2020, "ZeRO", section 3.1
mixed_fp32_grads  EleutherAI's cookbook, by default; Bekman's "Machine Learning Engineering"
mixed_fp32_accumulation   Nanotron, in "The Ultra-Scale Playbook"
"""
_OWN = ("mixed_fp32_grads", "mixed_fp32_accumulation")
_WHOLE = {name: sum(pieces) for name, pieces in _POLICIES.items()}
_EDGES = (8, 16, 18)  # bytes per parameter that just fit
_GIB = 2**30


def _draw(draw: Random) -> Values:
    budget = draw.choice((24, 40, 48, 80))  # GiB
    largest = budget * _GIB / draw.choice(_EDGES)
    return {
        "policy": draw.choice(_OWN),
        "parameters": round(draw.uniform(0.945, 0.985) * largest / 1e9, 2),  # billions
        "budget": budget * _GIB,
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("your policy", given["policy"]),
        ("your model", f"{given['parameters']:g} billion parameters, trained with Adam"),
        ("memory of one GPU", f"{given['budget']:,} bytes".replace(",", " ")),
    ]


def _pieces(given: Values) -> list[int]:
    return list(_POLICIES[given["policy"]])


def _with(number_of: int, size: int) -> Value:
    """The pieces of the learner's policy, one of them taken for another size."""
    return lambda given: [
        size if place == number_of else own for place, own in enumerate(_pieces(given))
    ]


def _state(given: Values) -> float:
    return _gigabytes(sum(_pieces(given)))(given)


def _gigabytes(size: float) -> Callable[[Values], float]:
    """GB at so many bytes per parameter."""
    return lambda given: float(size * given["parameters"])


def _fit(budget: Value) -> Callable[[Values], frozenset[str]]:
    """The policies whose model states take no more bytes than that."""
    return lambda given: frozenset(
        name for name, size in _WHOLE.items() if size * given["parameters"] * 1e9 <= budget(given)
    )


_gb = partial(number, unit="GB")

_FITS = Choices(
    dict.fromkeys(_POLICIES, ""),
    _fit(lambda given: given["budget"]),
    (
        Mistake(
            _fit(lambda given: given["budget"] / _GIB * 1e9),
            "this compares GB with GiB. The budget is a number of bytes: write both in bytes.",
        ),
        Mistake(
            lambda given: frozenset(_POLICIES) - _fit(lambda given: given["budget"])(given),
            "this is upside down: these do not fit.",
        ),
        Mistake("half_only", "look at `half_only` again: how many bytes per parameter is it?"),
        Mistake("fp32", "look at `fp32` again: add up all that it keeps."),
    ),
    "Bytes per parameter times parameters, for each policy, beside the bytes of the GPU.",
)

_HALVED = Choices(
    {
        "weights": "the parameters that the optimizer steps on",
        "gradients": "what is in .grad",
        "moments": "Adam's moments",
        "inputs": "the inputs that linear layers keep for the backward pass",
        "traffic": "what DDP sends",
    },
    frozenset({"inputs"}),
    (
        Mistake(
            "weights",
            "look at the weights again: autocast casts a copy of them on the way into each "
            "operation. Does it touch the parameters?",
        ),
        Mistake("gradients", "look at .grad again: it has the dtype of its parameter."),
        Mistake("traffic", "look at DDP again: it sends what is in .grad."),
        Mistake("moments", "look at the moments again: they have the dtype of their parameter."),
        Mistake("inputs", "look at the linear layers again: in which dtype do they compute?"),
    ),
    "Which tensors does autocast cast, and which are as the model was made?",
)

SIXTEEN_BYTES = Questions(
    _draw,
    _rows,
    (
        number(
            "pieces",
            "bytes per parameter under your policy, as a list of four: weights, gradients (with "
            "any buffer for them), master weights, Adam's moments",
            _pieces,
            "fp32 takes 4 bytes, 16 bits take 2. How many tensors of each kind are there?",
            (_with(3, 4), "Adam keeps two moments for each parameter."),
            (_with(2, 0), "from what are the 16-bit weights made after each step?"),
            (
                _with(1, 2),
                "these are 16-bit gradients only. What does your policy say of gradients?",
            ),
            (
                lambda given: _with(1, 4 if given["policy"] == _OWN[1] else 6)(given),
                "how many sets of gradients does your policy hold, and of which type is each?",
            ),
            (_with(0, 4), "the weights with which forward and backward compute have 16 bits."),
            (_with(2, 2), "a master weight of 16 bits could do no more than the weight itself."),
            exact=True,
        ),
        _gb(
            "state",
            "the model states under your policy: weights, gradients, master weights and moments "
            "of all parameters",
            _state,
            "Add up the bytes of one parameter. A billion of them is as many GB.",
            (_gigabytes(16), "this takes 16 bytes per parameter: add up those of your policy."),
            (_gigabytes(2), "these are the 16-bit weights alone."),
            (_gigabytes(8), "this is so where nothing at all is kept in fp32."),
            (
                lambda given: _state(given) - _gigabytes(8)(given),
                "this leaves 8 bytes per parameter out, as many as Adam's moments have.",
            ),
        ),
        _gb(
            "missing",
            "a text reckons: training takes four times the 16-bit weights. How much of `state` "
            "does that leave out?",
            lambda given: _state(given) - _gigabytes(8)(given),
            "Four times 2 bytes per parameter: what is the difference to yours?",
            (_gigabytes(8), "this is what the text has. What does it leave out?"),
            (_state, "this is all of it. The text has a part."),
            (
                lambda given: _state(given) - _gigabytes(4)(given),
                "this takes four bytes per parameter for the text. It says four times two.",
            ),
        ),
        number(
            "ratio",
            "the model states under `mixed` as a multiple of those under `fp32`",
            lambda given: _WHOLE["mixed"] / _WHOLE["fp32"],
            "Write down the four pieces of both, and add them up.",
            (
                lambda given: 0.5,
                "texts often say so. Weights and gradients are halved: and what comes on top?",
            ),
            (
                lambda given: 0.75,
                "weights and gradients are halved, and the moments stay. One piece is missing.",
            ),
            (
                lambda given: 1.25,
                "this adds master weights to full weights or gradients. Those have 16 bits.",
            ),
        ),
        Question("fits", 1, "under which policies the model states fit the GPU", _FITS),
        Question(
            "halved",
            1,
            "an ordinary fp32 model is trained with Adam and DDP, its forward pass now under "
            "`torch.autocast` with bf16: which of these take half as many bytes as before?",
            _HALVED,
        ),
    ),
)

PART = Part("04/sixteen_bytes", 1, "Which bytes are what", 5, 1, SIXTEEN_BYTES)
