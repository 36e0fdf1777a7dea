"""The values of 03/noise_scale: from squared norms at two batch sizes to what a batch will buy.

A run at batch B takes fewest x (1 + B_simple / B) steps (McCandlish et al. 2018).
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_BATCHES = (8, 32, 128, 512, 2048)
_WELL_BELOW = 4  # times as much noise as signal
_APART = 1.25  # how many times a batch is away from where it would change its side, at least


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
    """Whether one batch is below, but not well below, and none is near to where that changes."""
    edges = scale, scale / _WELL_BELOW
    near = any(1 / _APART < batch / edge < _APART for batch in _BATCHES for edge in edges)
    return not near and 128 < scale < 2048


def _rows(given: Values) -> list[tuple[str, str]]:
    rows = [
        (f"batch {batch}", f"mean squared norm of the gradient {norm:g}")
        for batch, norm in zip(given["batches"], given["norms"], strict=True)
    ]
    reached = f"{given['steps']} steps to reach the target loss"
    return [*rows, (f"a run at batch {given['batches'][0]}", reached)]


def _variance(given: Values) -> float:
    (small, big), (of_small, of_big) = given["batches"], given["norms"]
    return float((of_small - of_big) / (1 / small - 1 / big))


def _signal(given: Values) -> float:
    return float(given["norms"][0]) - _variance(given) / float(given["batches"][0])


def _scale(given: Values) -> float:
    return _variance(given) / _signal(given)


def _difference(given: Values) -> float:
    return float(given["norms"][0] - given["norms"][1])


def _up_to(limit: float) -> frozenset[str]:
    return frozenset(str(batch) for batch in _BATCHES if batch <= limit)


def _well_below(given: Values) -> frozenset[str]:
    return _up_to(_scale(given) / _WELL_BELOW)


def _all(given: Values) -> frozenset[str]:
    return frozenset(map(str, _BATCHES))


def _fewest(given: Values) -> float:
    return float(given["steps"]) / (1 + _scale(given) / float(given["batches"][0]))


def _fall(given: Values) -> float:
    """How much of the fewest steps is saved by doubling the batch `above`."""
    return _scale(given) / float(given["above"]) / 2


def _saved(given: Values) -> float:
    """How much of the steps at the batch `above`."""
    return _fall(given) / (1 + 2 * _fall(given))


_batch = partial(number, unit="samples")

NOISE_SCALE = Questions(
    _draw,
    _rows,
    (
        number(
            "variance",
            "tr(Sigma), the variance of one sample's gradient, summed over its elements",
            _variance,
            "Write one equation for each batch, and subtract them: the signal goes.",
            (
                _difference,
                "this is the noise that the larger batch has less. How much less than that of one "
                "sample is it?",
            ),
            (
                lambda given: _difference(given) * given["batches"][0],
                "this takes the gradient of the larger batch for one without noise.",
            ),
            (
                lambda given: given["norms"][0] * given["batches"][0],
                "this takes all of the gradient for noise.",
            ),
            (
                lambda given: _variance(given) / given["batches"][0],
                "this is the noise in a mean over the small batch. One sample has more.",
            ),
        ),
        number(
            "signal",
            "|G|^2, the squared norm of the gradient without noise",
            _signal,
            "Take from one of the squared norms what is noise in it.",
            (
                lambda given: given["norms"][1],
                "there is noise in it still: less of it than with the small batch.",
            ),
            (_difference, "the signal is in both norms: in their difference it is gone."),
            (
                lambda given: sqrt(_signal(given)),
                "this is the norm. Its square is asked for, as with the norms that are given.",
            ),
        ),
        _batch(
            "noise_scale",
            "B_simple",
            _scale,
            "At which batch is the noise in a gradient as large as the signal?",
            (lambda given: 1 / _scale(given), "this is upside down: signal over noise."),
            (
                lambda given: _variance(given) / sqrt(_signal(given)),
                "this divides by the norm of the gradient. Both have to be squares.",
            ),
            (
                lambda given: _variance(given) / given["norms"][1],
                "this divides by signal and noise together.",
            ),
        ),
        Question(
            "well_below",
            1,
            "the batches that are well below B_simple, so that the linear rule can be expected to "
            f"hold: those whose gradient has at least {_WELL_BELOW} times as much noise as signal",
            Choices(
                {str(batch): "" for batch in _BATCHES},
                _well_below,
                (
                    Mistake(
                        lambda given: _up_to(_scale(given)),
                        "these are all that have more noise than signal. Do all of them have "
                        f"{_WELL_BELOW} times as much?",
                    ),
                    Mistake(
                        lambda given: _all(given) - _up_to(_scale(given)),
                        "these are above B_simple, where the signal is larger than the noise.",
                    ),
                    Mistake(
                        lambda given: _all(given) - _well_below(given),
                        "this is upside down: the more samples, the less noise.",
                    ),
                    Mistake(
                        lambda given: str(min(_BATCHES)),
                        "which batch has the most noise of all?",
                    ),
                ),
                "For each of them: how large is tr(Sigma) / B beside |G|^2?",
            ),
        ),
        number(
            "fewest",
            "the fewest steps in which a batch without limit would reach that loss",
            _fewest,
            "What is 1 + B_simple / B at the small batch, and what with no limit to B?",
            (
                lambda given: given["steps"] * given["batches"][0] / _scale(given),
                "this has the steps fall in proportion all the way to B_simple, and no further.",
            ),
            (
                lambda given: given["steps"] / 2,
                "so it would be if the small batch were as large as B_simple.",
            ),
            (lambda given: 0.0, "without noise, there is still a way to go."),
            unit="steps",
        ),
        number(
            "saved",
            "by doubling a batch of {above}: the part of the steps at {above} that is saved",
            lambda given: 100 * _saved(given),
            "Work out 1 + B_simple / B before and after. What part of the first one is gone?",
            (
                lambda given: 50.0,
                "to halve the steps by doubling the batch takes one that is far below B_simple.",
            ),
            (
                lambda given: 100 * _fall(given),
                "this is a part of the fewest steps. Asked for is a part of those before.",
            ),
            (
                lambda given: 100 * (1 - _saved(given)),
                "this is the part of the steps that is left.",
            ),
            (lambda given: 0.0, "a little noise is left, even far above B_simple."),
            unit="%",
        ),
        number(
            "samples",
            "and how many times as many samples the run with the doubled batch takes in all",
            lambda given: 2 * (1 - _saved(given)),
            "Samples are steps times batch.",
            (lambda given: 2.0, "so it would be if not one step were saved."),
            (lambda given: 1.0, "so it is far below B_simple, where half of the steps are saved."),
            (lambda given: 1 - _saved(given), "this is how many times as many steps."),
        ),
    ),
)

PART = Part("03/noise_scale", 1, "What a larger batch buys", 8, 3, NOISE_SCALE)
