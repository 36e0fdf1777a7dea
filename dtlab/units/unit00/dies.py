"""The values of 00/dies: in which phase six real models peak, and where they run out of memory.

What is right is measured: two iterations of each model are run (`measured.peaks`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Question, Values
from dtlab.grading.questions.declared import asked, choice
from dtlab.units.unit00.settings import KINDS, Setting, draw_setting, setting_words
from dtlab.units.unit00.strategies import unless

__all__ = ["PART", "QUESTIONS"]

_PHASES = ("forward", "backward", "step", "second")
_CLEAR = 1.04  # times as many bytes, where one phase has more than another


@lru_cache(maxsize=64)  # a model is asked about several times
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
    """A model whose phases are alike, to the byte or so, or well apart where it matters."""
    for _ in range(100):
        setting = draw_setting(draw, kind)
        sizes = _peaks(setting)
        most = max(sizes.values())
        if all(size > 0.999 * most or size * _CLEAR < most for size in sizes.values()):
            return setting
    raise AssertionError(f"no draw of {kind} has a clear peak")


def _limit(draw: Random, sizes: Mapping[str, int]) -> int:
    """Bytes at which it dies in one of the phases that have more than any before, or in none."""
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
    "forward": "this is so where the inputs of a layer are large and not kept. What comes on top "
    "in backward?",
    "backward": "backward has all that was kept, and gradients. What does the second iteration "
    "have on top?",
    "step": "the optimizer has weights, gradients, its state, and scratch for one parameter. Is "
    "that more than what a forward pass keeps?",
    "second": "the second iteration has the optimizer's state and gradients not yet cleared on "
    "top. Does your model have either, and is the step smaller?",
}
_DIES_MISTAKES = {
    "forward": "add up weights, both batches, and what forward keeps of each layer.",
    "backward": "it gets there only if forward fits. What does backward have on top?",
    "step": "it gets there only if backward fits. How large are gradients and state?",
    "second": "it gets there only if the first iteration fits. What has stayed since?",
    "fits": "one of the phases takes more than the limit. Count that of the peak.",
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
            f"the phase in which model {name} has the most bytes; the first of those alike",
            list(_PEAK_MISTAKES),
            peak,
            "Measure a model like it.",
            unless(peak, _PEAK_MISTAKES),
            points=0.5,
        ),
        choice(
            f"{name}_dies",
            f"the first phase in which model {name} is beyond its limit, or that it fits",
            list(_DIES_MISTAKES),
            dies,
            "Go through the phases in order.",
            unless(dies, _DIES_MISTAKES),
        ),
    )


QUESTIONS = asked(_draw, _rows, *(one for name in "abcdef" for one in _questions(name)))

PART = Part(
    name="00/dies",
    level=3,
    title="Where does it die?",
    minutes=25,
    difficulty=2,
    check=QUESTIONS,
)
