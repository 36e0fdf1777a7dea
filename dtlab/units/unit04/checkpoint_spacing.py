"""The values of 04/checkpoint_spacing: what is kept, and what is computed again.

Of n layers each k-th input is kept; a segment of k layers runs forward again before it runs
backward (Chen et al. 2016, "Training deep nets with sublinear memory cost").
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_MODELS = (  # layers, and how many times its input a layer keeps: the best spacing is whole
    (36, 4), (48, 3), (54, 6), (64, 4), (72, 2), (75, 3), (80, 5), (96, 6), (100, 4),
)  # fmt: skip


def _draw(draw: Random) -> Values:
    layers, times = draw.choice(_MODELS)
    best, size = round(sqrt(layers / times)), draw.choice((5, 10, 20, 25, 40, 50))
    spacings = [k for k in range(2, layers // 2) if layers % k == 0 and k != best]
    before = draw.choice((200, 300, 400, 500, 800))
    return {
        "layers": layers,
        "input": size,
        "kept": times * size,
        "spacing": draw.choice(spacings),
        "before": before,
        "after": round(before * draw.uniform(1.363, 1.387)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("layers", f"{given['layers']}, all alike"),
        ("input of a layer", f"{given['input']} MB"),
        ("what a layer keeps for its backward pass", f"{given['kept']} MB, its input included"),
        ("a step without checkpoints, measured", f"{given['before']} ms"),
        ("a step with them, measured", f"{given['after']} ms"),
    ]


def _peak(given: Values, spacing: float) -> float:
    segments = given["layers"] / spacing
    return float(segments * given["input"] + spacing * given["kept"])


def _best(given: Values) -> float:
    """Where the derivative of the peak by the spacing is 0."""
    return sqrt(given["layers"] * given["input"] / given["kept"])


def _segments(given: Values) -> float:
    return float(given["layers"]) / _best(given)


def _longer(given: Values) -> float:
    """How many times as long a step takes."""
    return float(given["after"]) / float(given["before"])


_count = partial(number, exact=True)

CHECKPOINT_SPACING = Questions(
    _draw,
    _rows,
    (
        number(
            "peak",
            "what is in memory at the peak with a checkpoint every {spacing} layers",
            lambda given: _peak(given, given["spacing"]),
            "How many inputs are kept, and how many layers are in the segment that runs backward?",
            (
                lambda given: _peak(given, given["layers"] / given["spacing"]),
                "this takes the number of segments for the number of layers in one of them.",
            ),
            (
                lambda given: given["layers"] / given["spacing"] * given["input"],
                "these are the checkpoints. What does a segment need when it runs backward?",
            ),
            (
                lambda given: given["layers"] / given["spacing"] * given["input"] + given["kept"],
                "a segment is computed again as a whole: how many layers does it have?",
            ),
            (
                lambda given: given["layers"] * given["kept"],
                "so it is without checkpoints.",
            ),
            unit="MB",
        ),
        _count(
            "best",
            "the spacing k at which that peak is lowest",
            _best,
            "Write the peak with k for the spacing. Where are its two terms equal?",
            (
                lambda given: sqrt(given["layers"]),
                "so it is where a layer keeps no more than its input. Here it keeps more: long "
                "segments cost more than checkpoints do.",
            ),
            (
                _segments,
                "this is the number of segments at the lowest peak. How many layers has each?",
            ),
            (
                lambda given: 1,
                "this keeps every input. Fewer checkpoints with longer segments take less.",
            ),
            (
                lambda given: given["layers"] * given["input"] / given["kept"],
                "and the root of it?",
            ),
        ),
        _count(
            "again",
            "how many layers run forward once more in a step with the best spacing",
            lambda given: given["layers"],
            "Which layers have nothing left from the forward pass but, at most, their input?",
            (
                _segments,
                "so many segments there are. How many layers of each run again?",
            ),
            (
                lambda given: given["layers"] - _best(given),
                "this spares the last segment. It is a checkpoint here like the others.",
            ),
            (
                lambda given: given["layers"] - _segments(given),
                "this spares the first layer of each segment. Its input is kept, and nothing of "
                "what it computed.",
            ),
            (
                lambda given: given["layers"] * _best(given),
                "each segment runs again once, not once for each of its layers.",
            ),
        ),
        number(
            "flops",
            "how many more FLOPs a step takes, if a backward pass takes twice those of a forward "
            "pass",
            lambda given: 100 / 3,
            "Count in forward passes: what is a step without checkpoints, and what with them?",
            (lambda given: 25.0, "this is the part of the longer step. Beside the shorter one?"),
            (lambda given: 50.0, "this is beside the backward pass alone."),
            (lambda given: 100.0, "the forward pass runs twice, the backward pass once."),
            unit="%",
        ),
        number(
            "throughput",
            "by the measured times, how much of the throughput, in samples per second, is lost",
            lambda given: 100 * (1 - 1 / _longer(given)),
            "The same samples take longer. How many are done in a second, before and after?",
            (
                lambda given: 100 * (_longer(given) - 1),
                "so much longer a step takes. Samples per second fall by less.",
            ),
            (lambda given: 25.0, "this is worked out from FLOPs. What do the measured times say?"),
            (lambda given: 100 / _longer(given), "this is what is left."),
            unit="%",
        ),
    ),
)

PART = Part("04/checkpoint_spacing", 1, "Where checkpoints go", 5, 3, CHECKPOINT_SPACING)
