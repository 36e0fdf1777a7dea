"""Small pieces of English that several messages share."""

from __future__ import annotations

from dtlab.ranks.words import ranks_in_words

__all__ = ["amount", "count_ranks", "ranks_in_words"]


def amount(count: float) -> str:
    """`count` bytes in decimal units: "6.3 MB", "12 kB", "40 bytes"."""
    if count >= 1e5:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} bytes"


def count_ranks(count: int) -> str:
    """How many ranks: "1 rank", "4 ranks"."""
    return "1 rank" if count == 1 else f"{count} ranks"
