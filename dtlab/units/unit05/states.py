"""The values of 05/states: model states by stage and ranks, and what fits a card in bytes.

Mixed precision as ZeRO has it: 2 bytes of weights, 2 of gradients, 12 of optimizer state
(Rajbhandari et al. 2020, sections 3.1 and 5; their Figure 1 has the three stages at 7.5 B).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, floor
from random import Random
from typing import Any, Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number
from dtlab.predict.memory import floor_bytes, model_states, smallest_world_size

__all__ = ["PART"]

_BUDGETS: Final = {40: 42_949_672_960, 80: 85_899_345_920, 141: 150_754_820_096}
"""Bytes that drivers report of cards sold as 40, 80 and 141 GB: 40960, 81920 and 143771 MiB."""
_STAGES: Final = (1, 2, 3)


def _draw(draw: Random) -> Values:
    label = draw.choice((40, 80, 80, 141))
    sold = draw.random() < 0.5
    given: dict[str, Any] = {
        "stage": draw.choice((1, 2)),
        "small": draw.randrange(50, 145) / 10,  # billions
        "few": draw.choice((4, 6, 8, 12, 16)),
        "large": draw.randrange(120, 260),  # billions
        "budget": label * 10**9 if sold else _BUDGETS[label],
    }
    larger, smaller = sorted(draw.sample(_totals(given), 2), reverse=True)
    left = given["budget"] / 1e9 - draw.uniform(smaller, larger)  # so that some stages fit
    given["activations"] = round(left)
    telling = 4 < left < 0.7 * label and 0 < len(_fitting(given)) < len(_STAGES)
    return given if telling else _draw(draw)


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("your small model", f"{given['small']:g} billion parameters, on {given['few']} ranks"),
        ("your large model", f"{given['large']} billion parameters"),
        ("bytes of one card", f"{given['budget']:,}".replace(",", " ")),
        ("your stage", str(given["stage"])),
    ]


def _split(stage: Callable[[Values], int]) -> Callable[[Values], list[float]]:
    """GB of weights, gradients and optimizer state of the small model."""

    def pieces(given: Values) -> list[float]:
        states = model_states(round(given["small"] * 1e9), stage(given), given["few"], "mixed")
        return [one / 1e9 for one in (states.parameters, states.gradients, states.optimizer)]

    return pieces


def _by_bytes(*pieces: float) -> Callable[[Values], list[float]]:
    """GB of the small model at so many bytes per parameter each."""
    return lambda given: [one * given["small"] for one in pieces]


def _master_with_weights(given: Values) -> list[float]:
    small, ranks, stage = given["small"], given["few"], given["stage"]
    return [6 * small, 2 * small / (ranks if stage > 1 else 1), 8 * small / ranks]


def _totals(given: Values) -> list[float]:
    params = round(given["small"] * 1e9)
    return [model_states(params, n, given["few"], "mixed").total / 1e9 for n in _STAGES]


def _floor(given: Values) -> float:
    return floor_bytes(round(given["small"] * 1e9), given["stage"], "mixed") / 1e9


def _large(each: float, given: Values) -> float:
    """Cards that the large model fills at so many bytes per parameter."""
    return float(each * given["large"] * 1e9 / given["budget"])


def _ranks(given: Values) -> int | None:
    return smallest_world_size(given["large"] * 1e9, 3, given["budget"], "mixed")


def _ranks_beside_activations(given: Values) -> int | None:
    return smallest_world_size(
        given["large"] * 1e9, 3, given["budget"], "mixed",
        activation_bytes=given["activations"] * 1e9,
    )  # fmt: skip


def _activations_shared(given: Values) -> int:
    in_all = 16 * given["large"] + given["activations"]
    return ceil(float(in_all * 1e9 / given["budget"]))


def _fitting(given: Values) -> frozenset[str]:
    """The stages at which the small model fits."""
    room = given["budget"] / 1e9 - given["activations"]
    fits = (total <= room for total in _totals(given))
    return frozenset(f"stage {n}" for n, one in zip(_STAGES, fits, strict=True) if one)


_gb = partial(number, unit="GB")

_FITS = Choices(
    {f"stage {stage}": "" for stage in _STAGES},
    _fitting,
    (
        Mistake("stage 1", "look at stage 1 again: its bytes beside the activations."),
        Mistake("stage 2", "look at stage 2 again: its bytes beside the activations."),
        Mistake("stage 3", "look at stage 3 again: its bytes beside the activations."),
    ),
    "Your `totals`, and what activations leave of the card.",
)

STATES = Questions(
    _draw,
    _rows,
    (
        _gb(
            "pieces",
            "your small model at your stage, on each rank, as a list of three: weights, "
            "gradients, optimizer state",
            _split(lambda given: given["stage"]),
            "Which of the three does your stage divide? 2, 2 and 12 bytes per parameter.",
            (_by_bytes(2, 2, 12), "nothing is divided here: so it is in data parallelism."),
            (_split(lambda given: 3), "this divides all three, as stage 3 does."),
            (
                _split(lambda given: 3 - given["stage"]),
                "this is the other one of stages 1 and 2: what comes first, and what next?",
            ),
            (
                _master_with_weights,
                "this has the master copy among the weights. The optimizer steps on it, and it "
                "is divided as optimizer state.",
            ),
        ),
        _gb(
            "totals",
            "all model states of your small model on each rank at stages 1, 2 and 3, as a list",
            _totals,
            "Bytes per parameter that each rank keeps, and those that are divided, by stage.",
            (
                lambda given: (
                    [one - 2 * given["small"] for one in _totals(given)[:1]] + _totals(given)[1:]
                ),
                "a formula in use leaves the gradients out at stage 1, and then stage 2 is the "
                "larger one. Can it be?",
            ),
            (
                lambda given: [_totals(given)[2]] * 3,
                "this divides everything at each stage. Only stage 3 does.",
            ),
            (
                lambda given: [one / 2 for one in _totals(given)],
                "this is 8 bytes per parameter. What is kept in fp32?",
            ),
            points=2,
        ),
        _gb(
            "floor",
            "what your small model takes on each rank at your stage however many ranks there are: "
            "the limit for very many",
            _floor,
            "With ever more ranks the divided part goes to nothing. What is left?",
            (lambda given: 0, "so it is at stage 3. What does yours leave whole?"),
            (
                lambda given: 2 * given["stage"] * given["small"],
                "this is the floor of the other one of stages 1 and 2.",
            ),
            (lambda given: 16 * given["small"], "this is what one rank alone has."),
        ),
        number(
            "ranks",
            "the smallest number of ranks on which the model states of your large model fit, at "
            "stage 3, if nothing else takes room",
            _ranks,
            "All bytes of the model, over the bytes of one card; ranks are whole.",
            (
                lambda given: ceil(_large(8, given)),
                "this is 8 bytes per parameter: no fp32 master copy, no fp32 moments.",
            ),
            (
                lambda given: floor(_large(16, given)),
                "with these it misses by a part of a rank: round the other way.",
            ),
            (
                lambda given: ceil(_large(16, given) * 2**30 / 1e9),
                "this divides GB by GiB. Write both in bytes.",
            ),
            unit="ranks",
            exact=True,
        ),
        number(
            "ranks_beside",
            "the same if activations take {activations} GB on every rank",
            _ranks_beside_activations,
            "Activations are each rank's own. What do they leave of each card?",
            (_ranks, "this is without them."),
            (
                _activations_shared,
                "this divides the activations among the ranks. No stage of ZeRO does.",
            ),
            unit="ranks",
            exact=True,
        ),
        Question(
            "fits",
            1,
            "at which stages your small model fits beside {activations} GB of activations",
            _FITS,
        ),
    ),
)

PART = Part("05/states", 1, "Bytes by stage and ranks", 8, 2, STATES)
