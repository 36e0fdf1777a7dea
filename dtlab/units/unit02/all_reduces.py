"""The values of 02/all_reduces: into how many buckets DDP packs the gradients of six layers.

PyTorch's rule, from its reducer: in the first step there is one bucket without limit; from the
second on gradients are packed in the order in which they came, and a bucket is closed once it has
its limit. By default that is 1 MiB for the first one and 25 MiB for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Number, Question, Questions, Values

__all__ = ["PART", "buckets_of"]

_LAYERS = 6
_FIRST, _OTHERS = 1, 25  # MiB
_NAMES = {str(number): "" for number in range(1, _LAYERS + 1)}


def buckets_of(sizes: Sequence[int], first: int, others: int) -> list[list[int]]:
    """The places of the gradients in each bucket, from the last one on."""
    buckets: list[list[int]] = [[]]
    for place in reversed(range(len(sizes))):
        limit = first if len(buckets) == 1 else others
        if buckets[-1] and sum(sizes[one] for one in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(place)
    return buckets


def _draw(draw: Random) -> Values:
    return {
        "layers": draw.sample(range(1, 13), _LAYERS),
        "bucket_cap_mb": draw.randint(5, 16),
        "micro": draw.choice((3, 4, 5)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    rows = [
        (f"layer {number}", f"{size} MiB of parameters, in one tensor")
        for number, size in enumerate(given["layers"], 1)
    ]
    return [*rows, ("bucket_cap_mb", str(given["bucket_cap_mb"])), ("k", str(given["micro"]))]


def _buckets(given: Values) -> list[list[int]]:
    cap = given["bucket_cap_mb"]
    return buckets_of(given["layers"], cap, cap)


def _later(given: Values) -> int:
    return len(_buckets(given))


def _never_over(given: Values) -> int:
    """Where a bucket may not have more than its limit."""
    count, filling = 0, given["bucket_cap_mb"] + 1
    for size in reversed(given["layers"]):
        filling += size
        if filling > given["bucket_cap_mb"]:
            count, filling = count + 1, size
    return count


def _layers_in(bucket: int) -> Callable[[Values], frozenset[str]]:
    def names(given: Values) -> frozenset[str]:
        return frozenset(str(place + 1) for place in _buckets(given)[bucket])

    return names


def _from_the_front(given: Values) -> frozenset[str]:
    cap, sizes = given["bucket_cap_mb"], given["layers"]
    (first, *_) = buckets_of(sizes[::-1], cap, cap)
    return frozenset(str(_LAYERS - place) for place in first)


def _default(given: Values) -> int:
    return len(buckets_of(given["layers"], _FIRST, _OTHERS))


def _count(
    name: str, points: float, prompt: str, right: Callable[[Values], int], hint: str,
    *mistakes: tuple[Callable[[Values], int], str],
) -> Question:  # fmt: skip
    known = tuple(Mistake(wrong, why) for wrong, why in mistakes)
    return Question(name, points, prompt, Number(right, known, hint, tolerance=0))


_AS_AT_FIRST = "this is the one bucket of the first step. Now they have a limit."

ALL_REDUCES = Questions(
    _draw,
    _rows,
    (
        _count(
            "first_step",
            1,
            "all-reduces of gradients in step 1, with this bucket_cap_mb",
            lambda given: 1,
            "In the first step DDP does not know yet in which order gradients come.",
            (
                _later,
                "this is so from step 2 on. In step 1 DDP still finds out in which order "
                "gradients come.",
            ),
            (lambda given: _LAYERS, "this would be one for each layer, with no buckets at all."),
            (lambda given: 0, "without an all-reduce, the copies would part in the first step."),
        ),
        _count(
            "second_step",
            2,
            "all-reduces of gradients in step 2, with this bucket_cap_mb",
            _later,
            "From layer 6 on, add up sizes. With which layer has the bucket its limit or more?",
            (
                _never_over,
                "this closes a bucket before it has its limit. DDP closes it with the gradient by "
                "which it has reached the limit or passed it.",
            ),
            (lambda given: 1, _AS_AT_FIRST),
            (lambda given: _LAYERS, "this is one for each layer: each would be a bucket."),
        ),
        Question(
            "first_bucket",
            1,
            "the layers whose gradients travel first in step 2",
            Choices(
                _NAMES,
                _layers_in(0),
                (
                    Mistake(_from_the_front, "whose gradients does backward compute first?"),
                    Mistake(_layers_in(-1), "this is the bucket that travels last."),
                    Mistake(str(_LAYERS), "with which layer does backward begin?"),
                ),
                "From layer 6 on, take layers until the bucket has its limit or more.",
            ),
        ),
        _count(
            "default",
            1,
            "all-reduces of gradients in step 2 where bucket_cap_mb is not given",
            _default,
            "By default the first bucket is small, so that it leaves early: 1 MiB. The others "
            "have 25.",
            (
                lambda given: len(buckets_of(given["layers"], _OTHERS, _OTHERS)),
                "this has 25 MiB for all buckets. What of the first one?",
            ),
            (lambda given: 1, _AS_AT_FIRST),
        ),
        _count(
            "micro",
            1,
            "all-reduces in a later step that adds up the gradients of k microbatches, with this "
            "bucket_cap_mb and without no_sync",
            lambda given: given["micro"] * _later(given),
            "What does each call of backward do?",
            (_later, "this is so if only one of the k backward passes sends."),
            (lambda given: given["micro"], "this is one for each microbatch. And the buckets?"),
        ),
        _count(
            "no_sync",
            1,
            "the same where all microbatches but the last one are inside no_sync",
            _later,
            "What does a backward pass inside no_sync do?",
            (
                lambda given: given["micro"] * _later(given),
                "this is so without no_sync.",
            ),
            (lambda given: 1, "this is so for one bucket."),
            (
                lambda given: (given["micro"] - 1) * _later(given),
                "these are the passes inside no_sync: they send nothing.",
            ),
        ),
    ),
)

PART = Part("02/all_reduces", 1, "How many all-reduces", 7, 2, ALL_REDUCES)
