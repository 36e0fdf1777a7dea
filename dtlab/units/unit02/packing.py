"""Which buckets gradients fill, and models and limits of which a check can tell mistakes apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

from dtlab.grading.checking.nets import Net

__all__ = ["draw_plan", "numbers_of_buckets", "packed"]


def packed(sizes: Sequence[int], bucket_bytes: int, first: int = 0, later: int = 0) -> list[int]:
    """Bytes of the buckets that tensors of these sizes, in this order, fill.

    `first` and `later` are mistakes: what the count of bytes begins with, where it is not 0.
    """
    buckets, filling, counted = list[int](), 0, first
    for size in sizes:
        filling, counted = filling + size, counted + size
        if counted >= bucket_bytes:
            buckets.append(filling)
            filling, counted = 0, later
    return [*buckets, filling] if filling else buckets


def _closed_before(sizes: Sequence[int], bucket_bytes: int) -> int:
    """How many buckets there are where none may take more than `bucket_bytes`."""
    count, filling = 0, bucket_bytes + 1
    for size in sizes:
        filling += size
        if filling > bucket_bytes:
            count, filling = count + 1, size
    return count


def numbers_of_buckets(sizes: Sequence[int], bucket_bytes: int) -> set[int]:
    """How many buckets there are, filled from one end or the other: the end is not its matter."""
    return {len(packed(one, bucket_bytes)) for one in (sizes, sizes[::-1])}


def _exact_limits(sizes: Sequence[int]) -> list[int]:
    """Limits that the first bucket reaches exactly or misses by a byte, and a later one.

    With them, who counts from a byte too many or too few makes another number of buckets.
    """
    runs = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)}
    limits = []
    for mistake in ("first", "later"):
        for by, candidates in ((-1, sorted(runs)), (1, [run + 1 for run in sorted(runs)])):
            found = (
                limit
                for limit in candidates
                if len(packed(sizes, limit, **{mistake: by}))
                not in numbers_of_buckets(sizes, limit)
            )
            limits += [limit for limit in (next(found, None),) if limit is not None]
    return limits


def draw_plan(draw: random.Random) -> tuple[Net, int, list[int]]:
    """A frozen and five other layers, and limits of buckets that tell mistakes apart.

    With the first limit there are as many buckets counted from the first layer, of other sizes,
    and another number where a bucket is closed before it is full. The others are `_exact_limits`.
    """
    while True:
        widths = tuple(draw.sample(range(8, 33), 7))
        net = Net("frozen", widths, "a frozen and five other layers")
        trained = [pair for place, pair in enumerate(pairwise(widths)) if place != 1]
        sizes = [4 * size for a, b in trained for size in (a * b, b)]
        backwards, cap = sizes[::-1], 4 * draw.randint(150, 700)
        ours, forwards = packed(backwards, cap), packed(sizes, cap)
        exact = _exact_limits(backwards)
        if (
            len(ours) == len(forwards) in (3, 4)
            and not set(accumulate(forwards[:-1])) & set(accumulate(backwards))
            and _closed_before(backwards, cap) != len(ours)
            and len(packed(backwards, 4 * cap)) < len(ours)
            and len(exact) == 4
        ):
            return net, cap, exact
