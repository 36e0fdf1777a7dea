"""02/all_reduces: count the buckets into which DDP packs the gradients of six layers.

PyTorch's rule, from its reducer: the first step uses one bucket without a limit. From the second
step on, gradients are packed in the order in which they became ready in the first step. A bucket
is closed once it reaches its limit. By default the limit is 1 MiB for the first bucket and 25 MiB
for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number
from dtlab.units.unit02.average_in_buckets import closed_before

__all__ = ["PART", "buckets_of"]


def buckets_of(sizes: Sequence[int], first: int, others: int) -> list[list[int]]:
    """The indices of the gradients in each bucket, beginning with the last gradient."""
    buckets: list[list[int]] = [[]]
    for index in reversed(range(len(sizes))):
        limit = first if len(buckets) == 1 else others
        if buckets[-1] and sum(sizes[index] for index in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(index)
    return buckets


def _draw(draw: Random) -> Values:
    return {
        "layers": draw.sample(range(1, 13), 6),
        "bucket_cap_mb": draw.randint(5, 16),
        "micro": draw.choice((3, 4, 5)),
    }


_AS_AT_FIRST = "this is the single bucket of the first step. From step 2 on, buckets have a limit."

PART = Part(
    "02/all_reduces",
    1,
    "How many all-reduces",
    7,
    2,
    asked(
        _draw,
        [
            *(
                (f"layer {place + 1}", f"{{layers[{place}]}} MiB of parameters, in one tensor")
                for place in range(6)
            ),
            ("bucket_cap_mb", "{bucket_cap_mb}"),
            ("k", "{micro}"),
        ],
        number(
            "first_step",
            "all-reduces of gradients in step 1, with this bucket_cap_mb",
            "1",
            "In the first step the order in which gradients become ready is still unknown.",
            {
                "later": "this is right from step 2 on. In step 1 DDP still finds out in which "
                "order gradients become ready.",
                "6": "this would be one for each layer, without any buckets.",
                "0": "without an all-reduce, the copies would differ after the first step.",
            },
            exact=True,
        ),
        number(
            "second_step",
            "all-reduces of gradients in step 2, with this bucket_cap_mb",
            "later",
            "Add up sizes from layer 6 on. With which layer does the bucket reach its limit?",
            {
                "never_over(layers[::-1], cap)": "this closes a bucket before it reaches its "
                "limit. DDP closes it with the gradient that reaches or passes the limit.",
                "1": _AS_AT_FIRST,
                "6": "this is one for each layer: each would be a bucket.",
            },
            points=2,
            exact=True,
        ),
        choices(
            "first_bucket",
            "the layers whose gradients are sent first in step 2",
            "123456",
            formula("names(buckets[0])"),
            "Take layers from layer 6 on until the bucket reaches its limit.",
            {
                formula("names(5 - place for place in buckets_of(layers[::-1], cap, cap)[0])"): (
                    "which layers' gradients does backward compute first?"
                ),
                formula("names(buckets[-1])"): "this is the bucket that is sent last.",
                "6": "with which layer does backward begin?",
            },
        ),
        number(
            "default",
            "all-reduces of gradients in step 2 if bucket_cap_mb is not given",
            "len(buckets_of(layers, 1, 25))",
            "By default the limit of the first bucket is only 1 MiB, so that it is sent early. "
            "The others have a limit of 25 MiB.",
            {
                "len(buckets_of(layers, 25, 25))": "this uses 25 MiB for all buckets. What is the "
                "limit of the first one?",
                "1": _AS_AT_FIRST,
            },
            exact=True,
        ),
        number(
            "micro",
            "all-reduces in a later step that adds up the gradients of k microbatches, with this "
            "bucket_cap_mb and without no_sync",
            "micro * later",
            "What does each call of backward do?",
            {
                "later": "this would be right if only one of the k backward passes communicated.",
                "micro": "this is one for each microbatch. How many buckets does each one send?",
            },
            exact=True,
        ),
        number(
            "no_sync",
            "the same number if all microbatches except the last are inside no_sync",
            "later",
            "What does a backward pass inside no_sync do?",
            {
                "micro * later": "this is the number without no_sync.",
                "1": "this would be right for a single bucket.",
                "(micro - 1) * later": "these are the passes inside no_sync, which send nothing.",
            },
            exact=True,
        ),
        where={
            "buckets_of": buckets_of,
            "never_over": closed_before,
            "names": lambda places: frozenset(str(place + 1) for place in places),
            "cap": "bucket_cap_mb",
            "buckets": "buckets_of(layers, cap, cap)",
            "later": "len(buckets)",
        },
    ),
)
