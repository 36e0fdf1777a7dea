"""00/memory_moments: predict the bytes in GPU memory up to a model's second forward pass.

`tests/test_unit00_reason.py` compares the right answers with the tensors of a real model.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, formula, number
from dtlab.units.unit00.strategies import unless

__all__ = ["MOMENTS", "PART", "moments"]

_DTYPES: Final = {"fp32": 4, "bf16": 2}
_STATES: Final = {"Adam": 2, "SGD with momentum": 1}  # tensors as large as the weights
_EARLY, _LATE = "at the end of each step", "right before each backward pass"
MOMENTS: Final = {
    "building": "after the model has been built",
    "forward": "after the first forward pass",
    "backward": "after the first backward pass",
    "step": "after the first optimizer step, before gradients are cleared",
    "second": "after the second forward pass",
}


def moments(given: Values) -> dict[str, float]:
    """MB in use at each moment."""
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


_COMPARE = "compare that moment, and all earlier ones, with the memory of the GPU."

PART = Part(
    "00/memory_moments",
    1,
    "What is in memory, and when",
    7,
    2,
    asked(
        _draw,
        [
            ("parameters", "{parameters} million, in {dtype}"),
            ("optimizer", "{optimizer}"),
            ("a forward pass saves for backward", "{activations} MB"),
            ("gradients are cleared (set to None)", "{clears}"),
            ("memory of the GPU", "{card} MB"),
        ],
        number(
            "building",
            MOMENTS["building"],
            "weights",
            "Multiply the bytes per parameter by the millions of parameters to get MB.",
            {
                "2 * weights": "there are no gradients yet: the backward pass makes them.",
                "parameters": "this is the number of parameters. How many bytes does each take?",
            },
            unit="MB",
        ),
        number(
            "forward",
            MOMENTS["forward"],
            "held['forward']",
            "The weights stay in memory. What does the forward pass add?",
            {
                "activations": "the weights are still in memory.",
                "answer + weights": "there are no gradients yet.",
            },
            unit="MB",
        ),
        number(
            "backward",
            MOMENTS["backward"],
            "held['backward']",
            "What has the backward pass allocated, and what has it released?",
            {
                "answer + activations": "backward releases the activations saved for it.",
                "weights": "the gradients are in memory now. How large are they?",
                "held['step']": "the optimizer has no state before its first step.",
            },
            unit="MB",
        ),
        number(
            "step",
            MOMENTS["step"],
            "held['step']",
            "What does the optimizer allocate at its first step, and what is still in memory?",
            {
                "2 * weights": "these are weights and gradients. What has the optimizer added?",
                "(3 if optimizer == 'Adam' else 4) * weights": "how many numbers does your "
                "optimizer keep for each parameter, and are the gradients still in memory?",
            },
            unit="MB",
        ),
        number(
            "second",
            MOMENTS["second"],
            "held['second']",
            "Add what the first iteration left in memory. Are the gradients still there?",
            {
                "held['forward']": "this is the first iteration. What has been added since?",
                "answer - weights if late else answer + weights": "when does your loop clear the "
                "gradients, and are they in memory now?",
            },
            points=2,
            unit="MB",
        ),
        choice(
            "dies",
            'the first of these moments at which the GPU runs out of memory, or "never"',
            [*MOMENTS, "never"],
            formula("dies"),
            "Compare your five numbers with the memory of the GPU, in order.",
            unless(
                formula("dies"),
                {
                    "building": "are the weights alone too large?",
                    "forward": "add the saved activations to the weights, and compare.",
                    "backward": "weights and gradients are in memory then. Are they too large?",
                    "step": _COMPARE,
                    "second": _COMPARE,
                    "never": "one of your five numbers exceeds the memory of the GPU.",
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
