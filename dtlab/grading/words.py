"""Small pieces of English that several messages share."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["count_ranks", "megabytes", "name_ranks"]


def megabytes(count: float) -> str:
    """`count` bytes in decimal megabytes: "6.3 MB"."""
    return f"{count / 1e6:.1f} MB"


def count_ranks(count: int) -> str:
    """How many ranks: "1 rank", "4 ranks"."""
    return "1 rank" if count == 1 else f"{count} ranks"


def name_ranks(ranks: Sequence[int]) -> str:
    """Which ranks: "rank 2", "ranks 0, 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
