"""07/in_flight: the microbatches in flight on each stage, and their bytes.

Narayanan et al. 2021, section 2.2 (GPipe m, 1F1B p - i on stage i); Korthikanti et al. 2022,
"Reducing activation recomputation in large transformer models", section 4.2.3 (interleaved).
"""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, number
from dtlab.predict.transformer import first_stage_activation_bytes


def _draw(draw: Random) -> Values:
    stages, chunks = draw.choice((4, 5, 6, 8)), draw.choice((2, 3, 4))
    return {
        "stages": stages,
        "count": stages * draw.randrange(2, 7),
        "few": draw.randrange(2, stages - 1),
        "chunks": chunks,
        "layers": stages * chunks * draw.randrange(2, 5),
        "layer": draw.randrange(60, 400, 5),  # MB for one microbatch
    }


_WARM_UP = "these are the forwards of the warm-up. One more comes before the first backward."

PART = Part(
    "07/in_flight",
    1,
    "What each stage keeps",
    6,
    2,
    asked(
        _draw,
        [
            ("p, stages", "{stages}, counted from 0"),
            ("m, microbatches of a step", "{count}"),
            ("v, chunks on each rank", "{chunks}"),
            ("L, layers", "{layers}, the same number on each stage"),
            ("activations", "{layer} MB for one layer and one microbatch"),
        ],
        number(
            "gpipe",
            "what one stage keeps at most under GPipe, nothing recomputed",
            "model * m / p",
            "All forward passes come first. Count the layers of one stage, for all microbatches.",
            {
                "model / p": "this is one microbatch.",
                "model * m": "these are all layers. A stage has only its own layers.",
                "model": "this is p microbatches. What is freed before the last forward ends?",
            },
            unit="GB",
        ),
        number(
            "peaks",
            "microbatches that each stage keeps at most under 1F1B, as a list from stage 0 on",
            "[p - i for i in range(p)]",
            "After the first forward pass of a stage, how many more come before its backward?",
            {
                "[i + 1 for i in range(p)]": "this is the reverse: which stage waits longest?",
                "[p - 1 - i for i in range(p)]": _WARM_UP,
                "[p] * p": "this is right for stage 0. Which stages wait for less?",
                "[m] * p": "this is right for GPipe.",
            },
            exact=True,
        ),
        number(
            "few",
            "the same if a step has only {few} microbatches",
            "[min(few, p - i) for i in range(p)]",
            "Which stages reach their first backward before they run out of forwards?",
            {
                "[p - i for i in range(p)]": "some of these are more than there are.",
                "[few] * p": "this is right for GPipe. When can the last stage begin backward?",
                "[min(few, p - 1 - i) for i in range(p)]": _WARM_UP,
            },
            exact=True,
        ),
        number(
            "first_stage",
            "what stage 0 keeps at most under 1F1B, with m microbatches",
            "first_stage(layer * 1e6, layers, p) / 1e9",
            "Take the layers of one stage, times the first of your `peaks`.",
            {
                "model / p": "this is one microbatch.",
                "model * m / p": "this is right for GPipe.",
                "model * (p - 1) / p": _WARM_UP,
            },
            unit="GB",
        ),
        number(
            "interleaved",
            "what rank 0 keeps at most with v chunks, interleaved",
            "first_stage(layer * 1e6, layers, p, v) / 1e9",
            "Multiply your `first_stage` by a factor that comes from the longer warm-up.",
            {
                "model": "this is with one chunk: its warm-up is shorter.",
                "model * (1 + (p - 1) / p)": "this is the factor for v = 1. A chunk is smaller.",
                "model * v": "the warm-up grows, and each chunk is smaller.",
                "model / v": "the bubble falls like that. What about the warm-up?",
            },
            unit="GB",
        ),
        choices(
            "claims",
            "which of these claims hold",
            {
                "fixed_size": "more microbatches of a fixed size cost GPipe more memory",
                "fixed_batch": "more microbatches of a fixed batch cost GPipe more memory",
                "steady": "with m > p, more microbatches of a fixed size cost 1F1B no memory",
                "smaller": "1F1B has a smaller bubble than GPipe",
                "deeper": "with large m, more stages reduce the memory of the first under 1F1B",
                "last": "under 1F1B the last stage keeps one microbatch's activations",
            },
            {"fixed_size", "steady", "last"},
            "Go through them one by one, with your answers above.",
            {
                "fixed_size": "look at `fixed_size` again: when does GPipe free the first one?",
                "fixed_batch": "look at `fixed_batch` again: what do all of them hold together?",
                "steady": "look at `steady` again: what comes after each forward pass by then?",
                "smaller": "look at `smaller` again: when can the last stage begin, and end?",
                "deeper": "look at `deeper` again: fewer layers, and how many microbatches?",
                "last": "look at `last` again: what does it wait for after a forward pass?",
            },
            points=2,
        ),
        where={
            "first_stage": first_stage_activation_bytes,
            "p": "stages",
            "m": "count",
            "v": "chunks",
            "model": "layers * layer / 1e3",  # GB that all layers keep for one microbatch
        },
    ),
)
