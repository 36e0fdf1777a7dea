"""00/memory_moments: what lies in memory, from building a model to its second step.

`tests/test_unit00_reason.py` compares with tensors of a real model.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import asked, choice, formula, number
from dtlab.units.unit00.strategies import unless

__all__ = ["MOMENTS", "PART", "moments"]

_DTYPES: Final = {"fp32": 4, "bf16": 2}
_STATES: Final = {"Adam": 2, "SGD with momentum": 1}  # tensors as large as the weights
_EARLY, _LATE = "at the end of each step", "right before each backward pass"
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
    gradients = weights if given["clears"] == _LATE else 0.0
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
        "clears": draw.choice((_EARLY, _LATE)),
    }
    weights = given["parameters"] * _DTYPES[given["dtype"]]
    given["activations"] = round(weights * draw.choice((0.3, 0.7, 1.3, 2.2, 3.1)))
    sizes = sorted(moments(given).values())
    sizes.append(1.4 * sizes[-1])
    gaps = [(a, b) for a, b in pairwise(sizes) if b > 1.1 * a]
    below, above = draw.choice(gaps)
    return given | {"card": round((below + above) / 2)}


_COMPARE = "compare that with the card; and what came before?"

PART = Part(
    "00/memory_moments",
    1,
    "What lies in memory, and when",
    7,
    2,
    asked(
        _draw,
        [
            ("parameters", "{parameters} million, in {dtype}"),
            ("optimizer", "{optimizer}"),
            ("a forward pass keeps for backward", "{activations} MB"),
            ("gradients are cleared, set to None", "{clears}"),
            ("the card has room for", "{card} MB"),
        ],
        number(
            "building",
            MOMENTS["building"],
            "weights",
            "Bytes per parameter times millions of parameters are MB.",
            {
                "2 * weights": "there are no gradients yet. What makes them?",
                "parameters": "these are the parameters. How many bytes has each of them?",
            },
            unit="MB",
        ),
        number(
            "forward",
            MOMENTS["forward"],
            "held['forward']",
            "The weights stay where they are. What comes on top?",
            {
                "activations": "the weights are still there.",
                "answer + weights": "there are no gradients yet.",
            },
            unit="MB",
        ),
        number(
            "backward",
            MOMENTS["backward"],
            "held['backward']",
            "What has backward made, and what has it used up?",
            {
                "answer + activations": "backward lets go of what was kept for it.",
                "weights": "where are the gradients now?",
                "held['step']": "the optimizer has no state before its first step.",
            },
            unit="MB",
        ),
        number(
            "step",
            MOMENTS["step"],
            "held['step']",
            "What does the optimizer make at its first step, and what is still there?",
            {
                "2 * weights": "these are two numbers for each parameter. Are there no more now?",
                "(3 if optimizer == 'Adam' else 4) * weights": "how many numbers does your "
                "optimizer keep for each parameter, and are the gradients still there?",
            },
            unit="MB",
        ),
        number(
            "second",
            MOMENTS["second"],
            "held['second']",
            "As the first time, and what has stayed since. Are the gradients still there?",
            {
                "held['forward']": "so it was in the first iteration. What has stayed since?",
                "answer - weights if late else answer + weights": "when are the gradients cleared "
                "in your loop, and where are they now?",
            },
            points=2,
            unit="MB",
        ),
        choice(
            "dies",
            "the first of these moments at which the card has no room for it, or never",
            [*MOMENTS, "never"],
            formula("dies"),
            "Go through your five numbers in order.",
            unless(
                formula("dies"),
                {
                    "building": "are the weights alone too much?",
                    "forward": "add what is kept to the weights, and compare.",
                    "backward": "two sets of weights are in memory then. Is it too much?",
                    "step": _COMPARE,
                    "second": _COMPARE,
                    "never": "one of your five numbers is larger than the card's.",
                },
            ),
        ),
        where={
            "moments": moments,
            "held": "moments(given)",
            "weights": "held['building']",
            "late": f"clears == {_LATE!r}",
            "dies": "next((name for name in held if held[name] > card), 'never')",
        },
    ),
)
