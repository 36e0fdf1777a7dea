"""Overlap of gradient communication with the backward pass, bucket by bucket.

    backward    layer 4 | layer 3 | layer 2 | layer 1 |
    bucket 0            |-- all-reduce --|            :
    bucket 1                      ready :|-- all-reduce --|
                                                      :...: exposed

A bucket is closed once it has enough bytes. It is ready when backward has computed its last
gradient; its all-reduce starts then, or when the previous all-reduce ends: S. Li et al. 2020,
"PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dtlab.predict.communication import ring_all_reduce_seconds
from dtlab.predict.hardware import Link

__all__ = ["BucketTime", "Gradient", "bucket_times", "exposed_seconds"]


class Gradient(NamedTuple):
    """The seconds of backward for a layer, and the bytes of the layer's gradients."""

    seconds: float
    nbytes: float


class BucketTime(NamedTuple):
    """Bytes of a bucket, and its times in seconds from the start of backward.

    `ready` is the time of its last gradient; its all-reduce runs from `start` to `end`.
    """

    nbytes: float
    ready: float
    start: float
    end: float


def bucket_times(
    gradients: Sequence[Gradient],
    bucket_bytes: float,
    ranks: int,
    link: Link,
    *,
    first_bucket_bytes: float | None = None,
) -> list[BucketTime]:
    """Return the times of the buckets of one backward pass, on a ring of `ranks`.

    `gradients` are in the order in which backward computes them: the last layer's first. A bucket
    is closed once it has `bucket_bytes`, or `first_bucket_bytes` if it is the first. The times
    assume that communication does not slow backward down.
    Raises: ValueError for a bucket size that is not above 0, or gradients with values below 0.
    """
    limit = bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    if not (bucket_bytes > 0 and limit > 0):
        raise ValueError(f"A bucket needs more than 0 bytes, not {min(bucket_bytes, limit)!r}.")
    if any(gradient.seconds < 0 or gradient.nbytes < 0 for gradient in gradients):
        raise ValueError("Seconds and bytes of gradients must be 0 or more.")
    buckets: list[BucketTime] = []
    now = free = nbytes = 0.0
    for number, gradient in enumerate(gradients):
        now, nbytes = now + gradient.seconds, nbytes + gradient.nbytes
        if nbytes >= limit or number == len(gradients) - 1:
            start = max(now, free)
            free = start + ring_all_reduce_seconds(nbytes, ranks, link)
            buckets.append(BucketTime(nbytes, now, start, free))
            nbytes, limit = 0.0, bucket_bytes
    return buckets


def exposed_seconds(
    gradients: Sequence[Gradient],
    bucket_bytes: float,
    ranks: int,
    link: Link,
    *,
    first_bucket_bytes: float | None = None,
) -> float:
    """Return the seconds from the end of backward to the end of the last bucket."""
    buckets = bucket_times(
        gradients, bucket_bytes, ranks, link, first_bucket_bytes=first_bucket_bytes
    )
    return buckets[-1].end - sum(grad.seconds for grad in gradients) if buckets else 0.0
