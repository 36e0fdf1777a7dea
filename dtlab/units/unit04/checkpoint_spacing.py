"""04/checkpoint_spacing: the memory and the recomputation of evenly spaced checkpoints.

The input of every k-th layer is kept; a segment of k layers runs forward again before it runs
backward (Chen et al. 2016, "Training deep nets with sublinear memory cost").
"""

from __future__ import annotations

from math import sqrt
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number

_MODELS = (  # layers, and bytes kept as a multiple of the input: the best k is an integer
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


_QUESTIONS = asked(
    _draw,
    [
        ("layers", "{layers}, all equal"),
        ("input of a layer", "{input} MB"),
        ("what a layer keeps for its backward pass", "{kept} MB, its input included"),
        ("a step without checkpoints, measured", "{before} ms"),
        ("a step with them, measured", "{after} ms"),
    ],
    number(
        "peak",
        "the memory at the peak with a checkpoint every {spacing} layers",
        "segments * input + spacing * kept",
        "How many inputs are kept, and how many layers are in the segment that runs backward?",
        {
            "spacing * input + segments * kept": "this confuses k with the number of segments.",
            "segments * input + spacing * kept - input": "this counts the input of the segment "
            "in backward once. The text above counts it twice.",
            "segments * input": "these are the checkpoints. What does a segment need?",
            "segments * input + kept": "a segment is recomputed as a whole.",
            "layers * kept": "this is right without checkpoints.",
        },
        unit="MB",
    ),
    number(
        "best",
        "the spacing k at which that peak is lowest",
        "best",
        "Write the peak with k for the spacing. Where are its two terms equal?",
        {
            "sqrt(layers)": "this is right if a layer keeps no more than its input.",
            "layers / best": "this is the number of segments at the lowest peak.",
            "1": "this keeps every input. Fewer checkpoints with longer segments need less.",
            "layers * input / kept": "is a square root missing?",
        },
        unit="layers",
        exact=True,
    ),
    number(
        "again",
        "how many layers run forward a second time in a step with the best spacing",
        "layers",
        "Which layers keep nothing from the forward pass except, at most, their input?",
        {
            "layers / best": "this is the number of segments. How many layers of each run again?",
            "layers - best": "this omits the last segment. It is under a checkpoint too.",
            "layers - layers / best": "this omits the first layer of each segment. Its input "
            "is kept, but nothing that it computed.",
            "layers * best": "each segment runs again once, not once for each of its layers.",
        },
        unit="layers",
        exact=True,
    ),
    number(
        "flops",
        "how many more FLOPs a step takes, if backward takes twice as many as forward",
        "100 / 3",
        "Count in forward passes: how many make a step without checkpoints, and one with them?",
        {
            "25": "this is the share of the longer step. Compare with the shorter one.",
            "50": "this compares with the backward pass alone.",
            "100": "the forward pass runs twice, the backward pass once.",
        },
        unit="%",
    ),
    number(
        "throughput",
        "by the measured times, how much of the throughput, in samples per second, is lost",
        "100 * (1 - before / after)",
        "The same samples take longer. How many are processed in 1 s, before and after?",
        {
            "100 * (after / before - 1)": "a step takes this much longer. What is done in 1 s?",
            "25": "this follows from FLOPs. What follows from the times?",
            "100 * before / after": "this is the share that is left.",
        },
        unit="%",
    ),
    where={
        "sqrt": sqrt,
        "segments": "layers / spacing",
        "best": "sqrt(layers * input / kept)",
    },
)

PART = Part("04/checkpoint_spacing", 1, "Where to place checkpoints", 5, 3, _QUESTIONS)
