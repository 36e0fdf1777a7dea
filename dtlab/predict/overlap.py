"""Overlap of gradient communication with the backward pass, bucket by bucket.

    backward    layer 4 | layer 3 | layer 2 | layer 1 |
    bucket 0            |-- all-reduce --|            :
    bucket 1                      ready :|-- all-reduce --|
                                                      :...: exposed

A bucket is closed once it has so many bytes. It is ready with the last of its gradients, and
starts as soon as the one before it is there: S. Li et al. 2020, "PyTorch Distributed: Experiences
on Accelerating Data Parallel Training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dtlab.predict.communication import ring_all_reduce_seconds
from dtlab.predict.hardware import Link

__all__ = ["BucketTime", "Gradient", "bucket_times", "exposed_seconds"]


class Gradient(NamedTuple):
    """The seconds that backward takes for a layer, and the bytes of the gradients it leaves."""

    seconds: float
    nbytes: float


class BucketTime(NamedTuple):
    """A bucket: its bytes, and in seconds from where backward begins, its times.

    It is `ready` with its last gradient; its all-reduce goes on from `start` to `end`.
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
    """When the buckets of one backward pass travel round a ring of `ranks`, one after the other.

    `gradients` are in the order in which backward makes them: the last layer's first. A bucket is
    closed once it has `bucket_bytes`, or `first_bucket_bytes` if it is the first. Backward itself
    is not slowed down by what travels.
    Raises: ValueError for a bucket without size, or gradients that take less than no time.
    """
    limit = bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    if not (bucket_bytes > 0 and limit > 0):
        raise ValueError(f"A bucket has bytes above 0, not {min(bucket_bytes, limit)!r}.")
    if any(each.seconds < 0 or each.nbytes < 0 for each in gradients):
        raise ValueError("Seconds and bytes of gradients are numbers from 0 on.")
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
    """Seconds from the end of backward until the last bucket is there. See `bucket_times`."""
    buckets = bucket_times(
        gradients, bucket_bytes, ranks, link, first_bucket_bytes=first_bucket_bytes
    )
    return buckets[-1].end - sum(each.seconds for each in gradients) if buckets else 0.0
