"""The values of 05/moments: what a rank holds, and when, in a step of stage 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]

_EVENTS: Final = (
    "its weights are gathered for the first time",
    "its forward pass computes",
    "its weights are freed for the first time",
    "its weights are gathered for the second time",
    "its backward pass computes",
    "its gradients are reduce-scattered",
    "the optimizer steps",
)
_KEPT: Final = (0, 1, 3, 2, 4, 5, 6)
_STEP_FIRST: Final = (0, 1, 2, 3, 4, 6, 5)
_BACKWARD_FIRST: Final = (0, 1, 2, 4, 3, 5, 6)


def _draw(draw: Random) -> Values:
    names = list(range(1, len(_EVENTS) + 1))
    draw.shuffle(names)
    return {
        "names": names,  # the number that each event has
        "layers": draw.choice((16, 20, 24, 30, 32, 40)),
        "block": draw.randrange(40, 300, 5),  # millions of parameters
        "ranks": draw.choice((4, 8, 16)),
        "count": draw.choice((2, 3, 4, 6)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    by_number = sorted(zip(given["names"], _EVENTS, strict=True))
    return [
        ("your model", f"{given['layers']} blocks of {given['block']} million parameters"),
        ("your step", f"{given['ranks']} ranks, {given['count']} microbatches"),
        *((f"event {number}", what) for number, what in by_number),
    ]


def _in_order(places: Sequence[int]) -> Callable[[Values], list[int]]:
    """The numbers of the events, if they happen like this."""
    return lambda given: [given["names"][place] for place in places]


def _calls(
    gathers: Callable[[int], int], reductions: Callable[[int], int]
) -> Callable[[Values], list[int]]:
    """So many of each for a block, with k microbatches."""
    return lambda given: [given["layers"] * each(given["count"]) for each in (gathers, reductions)]


def _shard(given: Values) -> float:
    """MB of weights, in 16 bits, that a rank owns."""
    return float(2 * given["block"] * given["layers"] / given["ranks"])


def _block(given: Values) -> float:
    """MB of a block's weights in 16 bits."""
    return float(2 * given["block"])


def _held(shards: int, *blocks: int) -> Callable[[Values], list[float]]:
    """MB of weights at several moments: the shard, or not, and so many whole blocks."""
    return lambda given: [
        shards * _shard(given) + number_of * _block(given) for number_of in blocks
    ]


def _whole_model(given: Values) -> list[float]:
    layers = given["layers"]
    return _held(1, 0, layers, layers, layers)(given)


_mb = partial(number, unit="MB")

_CLAIMS = Choices(
    {
        "everything": "stage 3 divides all that a rank holds",
        "forward": "stage 3 gathers weights in the forward pass only",
        "again": "stage 3 gathers the weights of a block anew in each microbatch",
        "whole": "at stage 2 each rank has all weights at all times",
        "samples": "at stage 3 each rank computes a part of every layer for all samples",
        "own": "at stages 1 to 3 a rank's optimizer steps on its own part of the parameters",
    },
    frozenset({"again", "whole", "own"}),
    (
        Mistake(
            "everything",
            "look at `everything` again: what of activations, and of a block that is gathered?",
        ),
        Mistake("forward", "look at `forward` again: what is there when backward comes by?"),
        Mistake(
            "samples",
            "look at `samples` again: that is tensor parallelism. Whose samples does a rank have "
            "here, and whose weights does it use?",
        ),
        Mistake("again", "look at `again` again: what is left of a block after backward?"),
        Mistake("whole", "look at `whole` again: what does stage 2 divide, and what not?"),
        Mistake("own", "look at `own` again: what is divided from stage 1 on?"),
    ),
    "Go through them one by one, with a moment of the step in mind.",
)

MOMENTS = Questions(
    _draw,
    _rows,
    (
        number(
            "order",
            "the order in which the events happen to one block in a step of one microbatch, as "
            "a list of their numbers",
            _in_order(range(len(_EVENTS))),
            "Nothing computes without its weights, and nobody keeps them longer than needed.",
            (
                _in_order(_KEPT),
                "here weights are gathered while they are still there: between forward and "
                "backward of a block all later blocks have their turn.",
            ),
            (
                _in_order(_STEP_FIRST),
                "the step needs gradients averaged over all ranks: what brings them?",
            ),
            (
                _in_order(_BACKWARD_FIRST),
                "backward computes the gradient of a layer's input from its weights.",
            ),
            exact=True,
            points=2,
        ),
        number(
            "calls",
            "the all-gathers and the reduce-scatters that a rank takes part in during your step, "
            "as a list of two, if every block is freed after its forward pass",
            _calls(lambda k: 2 * k, lambda k: k),
            "In one microbatch, for one block: how many of each?",
            (_calls(lambda k: k, lambda k: k), "backward needs the weights too."),
            (
                _calls(lambda k: 2, lambda k: 1),
                "this is one microbatch. A rank has no room for what the others own until the "
                "last one.",
            ),
            (
                _calls(lambda k: 2 * k, lambda k: 1),
                "gradients of all blocks, whole, until the last microbatch: who would hold them?",
            ),
            exact=True,
        ),
        _mb(
            "weights",
            "the 16-bit weights that a rank holds, shard and gathered blocks, as a list of four: "
            "between two steps; while a block computes and nothing is prefetched; while a block "
            "computes and the next one is being gathered; between forward and backward, all "
            "blocks freed",
            _held(1, 0, 1, 2, 0),
            "A rank's own shard is always there. How many whole blocks come on top?",
            (
                _held(0, 0, 1, 2, 0),
                "a rank's own shard is in none of these: from what is a block gathered?",
            ),
            (_held(1, 0, 1, 1, 0), "what is prefetched takes room as well."),
            (_whole_model, "a rank never has all blocks at once: each is freed after its turn."),
            (
                _held(1, 0, 1, 2, 1),
                "by then the last block has been freed as well, as the question says.",
            ),
            points=2,
        ),
        _mb(
            "one_block",
            "the largest size of gathered weights if nobody gives a wrap policy, so that the "
            "whole model is one block",
            lambda given: given["layers"] * _block(given),
            "What does the first operation of the forward pass wait for now?",
            (_block, "this is one of the blocks that a policy would make."),
            (
                lambda given: 2 * _block(given),
                "this is two of the blocks that a policy would make.",
            ),
            (_shard, "this is a rank's own part. And what is gathered?"),
        ),
        Question("claims", 1, "which of these claims hold", _CLAIMS),
    ),
)

PART = Part("05/moments", 1, "Who holds what, and when", 7, 3, MOMENTS)
