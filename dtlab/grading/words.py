"""Small pieces of English that several messages share."""

from __future__ import annotations

from dtlab.ranks.words import ranks_in_words

__all__ = ["count_ranks", "megabytes", "ranks_in_words"]


def megabytes(count: float) -> str:
    """`count` bytes in decimal megabytes: "6.3 MB"."""
    return f"{count / 1e6:.1f} MB"


def count_ranks(count: int) -> str:
    """How many ranks: "1 rank", "4 ranks"."""
    return "1 rank" if count == 1 else f"{count} ranks"
