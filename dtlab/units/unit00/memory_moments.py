"""The values of 00/memory_moments: what lies in memory, from building a model to its second step.

`tests/test_unit00_reason.py` compares with tensors of a real model.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["MOMENTS", "PART", "moments"]

_DTYPES: Final = {"fp32": 4, "bf16": 2}
_STATES: Final = {"Adam": 2, "SGD with momentum": 1}  # tensors as large as the weights
_CLEARS: Final = {
    "at the end of each step": "before",
    "right before each backward pass": "after",
}
MOMENTS: Final = {
    "building": "when the model has been built",
    "forward": "when the first forward pass is over",
    "backward": "when the first backward pass is over",
    "step": "when the optimizer has stepped once, before gradients are cleared",
    "second": "when the second forward pass is over",
}


def moments(given: Values) -> dict[str, float]:
    """MB at each moment."""
    weights = float(given["parameters"] * _DTYPES[given["dtype"]])
    states, kept = _STATES[given["optimizer"]] * weights, float(given["activations"])
    gradients = weights if _CLEARS[given["clears"]] == "after" else 0.0
    return {
        "building": weights,
        "forward": weights + kept,
        "backward": 2 * weights,
        "step": 2 * weights + states,
        "second": weights + states + gradients + kept,
    }


def _draw(draw: Random) -> Values:
    given: dict[str, Any] = {
        "parameters": draw.choice((50, 80, 125, 150, 200)),  # millions
        "dtype": draw.choice(list(_DTYPES)),
        "optimizer": draw.choice(list(_STATES)),
        "clears": draw.choice(list(_CLEARS)),
    }
    weights = given["parameters"] * _DTYPES[given["dtype"]]
    given["activations"] = round(weights * draw.choice((0.3, 0.7, 1.3, 2.2, 3.1)))
    sizes = sorted(moments(given).values())
    sizes.append(1.4 * sizes[-1])
    gaps = [(a, b) for a, b in pairwise(sizes) if b > 1.1 * a]
    below, above = draw.choice(gaps)
    return given | {"card": round((below + above) / 2)}


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("parameters", f"{given['parameters']} million, in {given['dtype']}"),
        ("optimizer", given["optimizer"]),
        ("a forward pass keeps for backward", f"{given['activations']} MB"),
        ("gradients are cleared, set to None", given["clears"]),
        ("the card has room for", f"{given['card']} MB"),
    ]


def _weights(given: Values) -> float:
    return moments(given)["building"]


def _dies(given: Values) -> str:
    sizes = moments(given)
    return next((name for name in sizes if sizes[name] > given["card"]), "never")


def _unless(name: str, why: str) -> Mistake:
    return Mistake(lambda given: "" if _dies(given) == name else name, why)


_mb = partial(number, unit="MB")

MEMORY_MOMENTS = Questions(
    _draw,
    _rows,
    (
        _mb(
            "building",
            MOMENTS["building"],
            lambda given: moments(given)["building"],
            "Bytes per parameter times millions of parameters are MB.",
            (
                lambda given: 2 * _weights(given),
                "there are no gradients yet: .grad is None until the first backward pass.",
            ),
            (
                lambda given: given["parameters"],
                "these are the parameters. How many bytes has each of them?",
            ),
        ),
        _mb(
            "forward",
            MOMENTS["forward"],
            lambda given: moments(given)["forward"],
            "The weights stay where they are. What comes on top?",
            (
                lambda given: given["activations"],
                "the weights are still there.",
            ),
            (
                lambda given: 2 * _weights(given) + given["activations"],
                "there are no gradients yet.",
            ),
        ),
        _mb(
            "backward",
            MOMENTS["backward"],
            lambda given: moments(given)["backward"],
            "What has backward made, and what has it used up?",
            (
                lambda given: 2 * _weights(given) + given["activations"],
                "backward lets go of what was kept for it.",
            ),
            (lambda given: _weights(given), "where are the gradients now?"),
            (
                lambda given: moments(given)["step"],
                "the optimizer has not stepped yet: it has no state before its first step.",
            ),
        ),
        _mb(
            "step",
            MOMENTS["step"],
            lambda given: moments(given)["step"],
            "What does the optimizer make at its first step, and what is still there?",
            (
                lambda given: 2 * _weights(given),
                "these are two numbers for each parameter. Count the weight, its gradient, which "
                "nobody has cleared yet, and what the optimizer has made now.",
            ),
            (
                lambda given: (5 - _STATES[given["optimizer"]]) * _weights(given),
                "how many numbers does your optimizer keep for each parameter, and are the "
                "gradients still there?",
            ),
        ),
        _mb(
            "second",
            MOMENTS["second"],
            lambda given: moments(given)["second"],
            "As the first time, and what has stayed since. Are the gradients still there?",
            (
                lambda given: moments(given)["forward"],
                "so it was in the first iteration. The optimizer's state stays.",
            ),
            (
                lambda given: (
                    moments(given)["second"]
                    + (-1 if _CLEARS[given["clears"]] == "after" else 1) * _weights(given)
                ),
                "when are the gradients cleared in your loop, and where are they now?",
            ),
            points=2,
        ),
        Question(
            "dies",
            1,
            "the first of these moments at which it is more than the card has room for, or never",
            Choice(
                dict.fromkeys(MOMENTS, "") | {"never": ""},
                _dies,
                (
                    _unless("building", "are the weights alone too much?"),
                    _unless("forward", "add what is kept to the weights, and compare."),
                    _unless("backward", "two sets of weights are in memory then. Is it too much?"),
                    _unless("step", "compare that with the card; and what came before?"),
                    _unless("second", "compare that with the card; and what came before?"),
                    _unless("never", "one of your five numbers is larger than the card's."),
                ),
                "Go through your five numbers in order.",
            ),
        ),
    ),
)

PART = Part("00/memory_moments", 1, "What lies in memory, and when", 7, 2, MEMORY_MOMENTS)
