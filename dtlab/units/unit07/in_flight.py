"""The values of 07/in_flight: microbatches under way on each stage, and their bytes.

Narayanan et al. 2021, section 2.2 (GPipe m, 1F1B p - i on stage i); Korthikanti et al. 2022,
"Reducing activation recomputation in large transformer models", section 4.2.3 (interleaved).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number
from dtlab.predict.activations import first_stage_activation_bytes

__all__ = ["PART"]


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


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("p, stages", f"{given['stages']}, counted from 0"),
        ("m, microbatches of a step", str(given["count"])),
        ("v, chunks on each rank", str(given["chunks"])),
        ("L, layers", f"{given['layers']}, the same number on each stage"),
        ("activations", f"{given['layer']} MB for one layer and one microbatch"),
    ]


def _model(given: Values) -> float:
    """GB that all layers keep for one microbatch."""
    return float(given["layers"] * given["layer"] / 1e3)


def _worth(factor: Callable[[int, int, int], float]) -> Callable[[Values], float]:
    """GB: so many times what all layers keep for one microbatch, from p, m and v."""
    return lambda given: factor(given["stages"], given["count"], given["chunks"]) * _model(given)


def _first(given: Values, chunks: int = 1) -> float:
    """GB on stage 0 under 1F1B."""
    size = given["layer"] * 1e6
    held = first_stage_activation_bytes(size, given["layers"], given["stages"], chunks)
    return held / 1e9


def _by_stage(each: Callable[[int, int], int], most: str = "count") -> Callable[[Values], object]:
    """Microbatches for each stage i of p, at most as many as the step has."""
    return lambda given: [
        min(given[most], each(given["stages"], i)) for i in range(given["stages"])
    ]


_FULL = 10**6  # more than any step has
_gb = partial(number, unit="GB")

_CLAIMS = Choices(
    {
        "fixed_size": "at a fixed microbatch size, more microbatches cost GPipe more memory",
        "fixed_batch": "at a fixed batch, more and smaller microbatches cost GPipe more memory",
        "steady": "at a fixed microbatch size and m > p, more microbatches cost 1F1B no memory",
        "smaller": "1F1B has a smaller bubble than GPipe",
        "deeper": "the same model on more stages leaves the first one less to keep under 1F1B, "
        "m being large",
        "last": "under 1F1B the last stage keeps one microbatch's activations",
    },
    frozenset({"fixed_size", "steady", "last"}),
    (
        Mistake("fixed_size", "look at `fixed_size` again: when does GPipe free the first one?"),
        Mistake(
            "fixed_batch",
            "look at `fixed_batch` again: what do all microbatches together hold, however the "
            "batch is cut?",
        ),
        Mistake("steady", "look at `steady` again: what comes after each forward pass by then?"),
        Mistake("smaller", "look at `smaller` again: when can the last stage begin, and end?"),
        Mistake(
            "deeper", "look at `deeper` again: fewer layers on a stage, and how many microbatches?"
        ),
        Mistake("last", "look at `last` again: what does it wait for after a forward pass?"),
    ),
    "Go through them one by one, with your answers above.",
)

IN_FLIGHT = Questions(
    _draw,
    _rows,
    (
        _gb(
            "gpipe",
            "what one stage keeps at most under GPipe, nothing recomputed",
            _worth(lambda p, m, v: m / p),
            "All forward passes come first. The layers of one stage, for all of them.",
            (_worth(lambda p, m, v: 1 / p), "this is one microbatch."),
            (_worth(lambda p, m, v: m), "these are all layers. A stage has its own ones only."),
            (
                _worth(lambda p, m, v: 1),
                "this is p microbatches. What has been freed when the last forward is through?",
            ),
        ),
        number(
            "peaks",
            "microbatches whose activations each stage keeps at most under 1F1B, as a list from "
            "stage 0 on",
            _by_stage(lambda p, i: p - i),
            "From the first forward pass of a stage on: how many more until its first backward?",
            (
                _by_stage(lambda p, i: i + 1),
                "this is the wrong way round: which stage waits longest for its first backward?",
            ),
            (
                _by_stage(lambda p, i: p - 1 - i),
                "these are the forwards of the warm-up. One more comes before the first backward.",
            ),
            (_by_stage(lambda p, i: p), "this is stage 0. Who has less to wait for?"),
            (_by_stage(lambda p, i: _FULL), "so it is under GPipe."),
            exact=True,
        ),
        number(
            "few",
            "the same if a step has {few} microbatches only",
            _by_stage(lambda p, i: p - i, "few"),
            "Which stages get to their first backward before they run out of forwards?",
            (_by_stage(lambda p, i: p - i), "some of these are more than there are."),
            (
                _by_stage(lambda p, i: _FULL, "few"),
                "so it is under GPipe. What does the last stage do after its first forward?",
            ),
            (
                _by_stage(lambda p, i: p - 1 - i, "few"),
                "these are the forwards of the warm-up. One more comes before the first backward.",
            ),
            exact=True,
        ),
        _gb(
            "first_stage",
            "what stage 0 keeps at most under 1F1B, with m microbatches",
            _first,
            "Layers of one stage, times the first of your `peaks`.",
            (_worth(lambda p, m, v: 1 / p), "this is one microbatch."),
            (_worth(lambda p, m, v: m / p), "so it is under GPipe."),
            (
                _worth(lambda p, m, v: (p - 1) / p),
                "these are the forwards of the warm-up. One more comes before the first backward.",
            ),
        ),
        _gb(
            "interleaved",
            "what rank 0 keeps at most with v chunks, interleaved",
            lambda given: _first(given, given["chunks"]),
            "Your `first_stage`, and a factor that comes from a longer warm-up.",
            (_first, "this is with one chunk: its warm-up is shorter."),
            (
                _worth(lambda p, m, v: 1 + (p - 1) / p),
                "this is the factor for v = 1. A chunk has a v-th part of the layers.",
            ),
            (_worth(lambda p, m, v: v), "the warm-up grows, and each chunk is smaller."),
            (_worth(lambda p, m, v: 1 / v), "the bubble falls like that. What of the warm-up?"),
        ),
        Question("claims", 2, "which of these claims hold", _CLAIMS),
    ),
)

PART = Part("07/in_flight", 1, "What each stage keeps", 6, 2, IN_FLIGHT)
