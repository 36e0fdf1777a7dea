"""00/dies: predict in which phase six models peak, and in which they run out of memory.

The right answers are measurements: `measured.peaks` runs two iterations of each model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choice
from dtlab.units.unit00.settings import KINDS, Setting, draw_setting, setting_words
from dtlab.units.unit00.strategies import unless

__all__ = ["PART", "QUESTIONS"]

_PHASES = ("forward", "backward", "step", "second")
_CLEAR = 1.04  # least ratio of the bytes of two phases that count as different


@lru_cache(maxsize=64)  # several questions are about the same model
def _measured(setting: str) -> Mapping[str, int]:
    from dtlab.units.unit00.measured import peaks

    return peaks(json.loads(setting))


def _peaks(setting: Setting) -> Mapping[str, int]:
    return _measured(json.dumps(setting))


def _draw(draw: Random) -> Values:
    kinds = draw.sample(KINDS, len(KINDS))
    models = {}
    for name, kind in zip("abcdef", kinds, strict=True):
        setting = _clear_setting(draw, kind)
        models[name] = {"setting": setting, "limit": _limit(draw, _peaks(setting))}
    return models


def _clear_setting(draw: Random, kind: str) -> Setting:
    """A setting in which each phase's bytes are within 0.1 % of the peak, or well below it."""
    for _ in range(100):
        setting = draw_setting(draw, kind)
        sizes = _peaks(setting)
        most = max(sizes.values())
        if all(size > 0.999 * most or size * _CLEAR < most for size in sizes.values()):
            return setting
    raise AssertionError(f"no draw of {kind} has a clear peak")


def _limit(draw: Random, sizes: Mapping[str, int]) -> int:
    """Draw a memory limit: either the model fits, or a phase with a new maximum exceeds it."""
    highest = [0, *accumulate(sizes.values(), max)]
    gaps = [(before, after) for before, after in pairwise(highest[1:]) if after > _CLEAR * before]
    forward = round(0.8 * highest[1]), highest[1]
    fits = highest[-1], round(1.2 * highest[-1])
    below, above = draw.choice((forward, fits, *(gaps or [fits]) * 2))
    return (below + above) // 2


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        (f"model {name}", f"{setting_words(model['setting'])}; limit {model['limit']:,} bytes")
        for name, model in given.items()
    ]


_PEAK_MISTAKES = {
    "forward": "forward peaks if a layer's input is large and is not saved for backward. What "
    "does backward add?",
    "backward": "backward holds all saved activations, and gradients. What does the second "
    "iteration add?",
    "step": "the optimizer step holds weights, gradients, optimizer state, and temporary tensors "
    "for one parameter. Is that more than the activations that a forward pass saves?",
    "second": "the second iteration also holds the optimizer state and any gradients that were "
    "not cleared. Does your model have either of them, and is the step smaller?",
}
_DIES_MISTAKES = {
    "forward": "add up the weights, both batches, and the activations that forward saves.",
    "backward": "backward runs only if forward fits. What does backward add?",
    "step": "the step runs only if backward fits. How large are gradients and optimizer state?",
    "second": "add up what the second iteration holds, including what the first one left.",
    "fits": "one of the phases exceeds the limit. Count the bytes of the peak phase.",
}


def _questions(name: str) -> tuple[Question, Question]:
    def peak(given: Values) -> str:
        sizes = _peaks(given[name]["setting"])
        return next(phase for phase in _PHASES if sizes[phase] > 0.999 * max(sizes.values()))

    def dies(given: Values) -> str:
        sizes = _peaks(given[name]["setting"])
        beyond = (phase for phase in _PHASES if sizes[phase] > given[name]["limit"])
        return next(beyond, "fits")

    return (
        choice(
            f"{name}_peak",
            f"the phase in which model {name} has the most bytes; if several are equal, the first",
            list(_PEAK_MISTAKES),
            peak,
            "Measure a similar model.",
            unless(peak, _PEAK_MISTAKES),
            points=0.5,
        ),
        choice(
            f"{name}_dies",
            f'the first phase in which model {name} exceeds its limit, or "fits"',
            list(_DIES_MISTAKES),
            dies,
            "Go through the phases in order.",
            unless(dies, _DIES_MISTAKES),
        ),
    )


QUESTIONS = asked(_draw, _rows, *(q for name in "abcdef" for q in _questions(name)))

PART = Part(
    name="00/dies",
    level=3,
    title="Where does memory run out?",
    minutes=25,
    difficulty=2,
    check=QUESTIONS,
)
