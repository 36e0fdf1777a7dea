"""03/noise_scale: compute the gradient noise scale from squared norms at two batch sizes.

A run at batch B takes fewest x (1 + B_noise / B) steps (McCandlish et al. 2018).
"""

from __future__ import annotations

from math import sqrt
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number

_BATCHES = (8, 32, 128, 512, 2048)
_APART = 1.25  # least ratio between a batch and a limit at which the answer would change


def _draw(draw: Random) -> Values:
    while True:
        small, times = draw.choice((16, 32, 64)), draw.choice((2, 4))
        signal, multiple = draw.choice((0.5, 2, 3, 4, 5)), draw.randint(3, 50)
        noise = signal * multiple  # in a mean over the small batch
        if _clear(small * multiple) and (noise / times).is_integer():
            break
    return {
        "batches": [small, times * small],
        "norms": [signal + noise, signal + noise / times],
        "steps": (1 + multiple) * draw.choice((500, 1000, 2000)),
        "above": draw.choice((4, 7, 9, 14, 19)) * small * multiple,
    }


def _clear(scale: float) -> bool:
    """Whether some batch is between scale / 4 and scale, and none is close to either limit."""
    edges = scale, scale / 4
    near = any(1 / _APART < batch / edge < _APART for batch in _BATCHES for edge in edges)
    return not near and 128 < scale < 2048


def _rows(given: Values) -> list[tuple[str, str]]:
    (small, big), (of_small, of_big) = given["batches"], given["norms"]
    return [
        (f"batch {small}", f"mean squared norm of the gradient {of_small:g}"),
        (f"batch {big}", f"mean squared norm of the gradient {of_big:g}"),
        (f"a run at batch {small}", f"{given['steps']} steps to reach the target loss"),
    ]


def _up_to(limit: float) -> frozenset[str]:
    return frozenset(str(batch) for batch in _BATCHES if batch <= limit)


PART = Part(
    "03/noise_scale",
    1,
    "What a larger batch saves",
    8,
    3,
    asked(
        _draw,
        _rows,
        number(
            "variance",
            "tr(Sigma), the variance of one sample's gradient, summed over its elements",
            "variance",
            "Write one equation for each batch, and subtract them: the signal cancels.",
            {
                "norms[0] - norms[1]": "this is how much less noise the larger batch has. What "
                "part of one sample's noise is that?",
                "(norms[0] - norms[1]) * small": "this assumes that the gradient of the larger "
                "batch has no noise.",
                "norms[0] * small": "this assumes that all of the gradient is noise.",
                "answer / small": "this is the noise in a mean over the small batch, not of one.",
            },
        ),
        number(
            "signal",
            "|G|^2, the squared norm of the gradient without noise",
            "signal",
            "Subtract the noise from one of the squared norms.",
            {
                "norms[1]": "this still contains noise, less than with the small batch.",
                "norms[0] - norms[1]": "both norms contain the signal: it cancels in their "
                "difference.",
                "sqrt(answer)": "this is the norm. The question asks for its square.",
            },
        ),
        number(
            "noise_scale",
            "B_noise",
            "scale",
            "At which batch is the noise in a gradient as large as the signal?",
            {
                "1 / answer": "this is the inverse: signal over noise.",
                "variance / sqrt(signal)": "this divides by the norm of the gradient. Both must "
                "be squares.",
                "variance / norms[1]": "this divides by signal and noise together.",
            },
            unit="samples",
        ),
        choices(
            "well_below",
            "the batches that are well below B_noise, so that the linear rule can be expected to "
            "hold: those whose gradient has at least 4 times as much noise as signal",
            [str(batch) for batch in _BATCHES],
            formula("up_to(scale / 4)"),
            "For each of them: how large is tr(Sigma) / B compared with |G|^2?",
            {
                formula("up_to(scale)"): "these are all that have more noise than signal. Do all "
                "of them have 4 times as much?",
                formula("up_to(2048) - up_to(scale)"): "these are above B_noise, where the "
                "signal is larger than the noise.",
                formula("up_to(2048) - up_to(scale / 4)"): "this is the opposite: with more "
                "samples there is less noise.",
                "8": "which batch has the most noise?",
            },
        ),
        number(
            "fewest",
            "the steps in which an infinitely large batch would reach that loss",
            "steps / (1 + scale / small)",
            "What is 1 + B_noise / B at the small batch, and at an infinitely large one?",
            {
                "steps * small / scale": "this assumes that steps fall in proportion up to "
                "B_noise, and then stay.",
                "steps / 2": "this would be right if the small batch were as large as B_noise.",
                "0": "even without noise, training takes steps.",
            },
            unit="steps",
        ),
        number(
            "saved",
            "the part of the steps at a batch of {above} that doubling the batch saves",
            "100 * saved",
            "Compute 1 + B_noise / B before and after. By what part does it fall?",
            {
                "50": "steps are halved only if the batch is far below B_noise.",
                "100 * fall": "this is a part of the fewest steps, not of the steps before.",
                "100 - answer": "this is the part of the steps that is left.",
                "0": "a little noise is left, even far above B_noise.",
            },
            unit="%",
        ),
        number(
            "samples",
            "how many times as many samples the run with the doubled batch takes in all",
            "2 * (1 - saved)",
            "Samples are steps times batch.",
            {
                "2": "this would be right if no step were saved.",
                "1": "this is right far below B_noise, where half of the steps are saved.",
                "answer / 2": "this is the ratio of steps.",
            },
        ),
        where={
            "sqrt": sqrt,
            "up_to": _up_to,
            "small": "batches[0]",
            "variance": "(norms[0] - norms[1]) / (1 / small - 1 / batches[1])",
            "signal": "norms[0] - variance / small",
            "scale": "variance / signal",
            "fall": "scale / above / 2",  # of the fewest steps, by doubling the batch `above`
            "saved": "fall / (1 + 2 * fall)",  # of the steps at the batch `above`
        },
    ),
)
