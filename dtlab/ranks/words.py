"""Text functions that the error messages share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 92  # characters that a notebook's output shows in one line


def wrapped(text: str, indent: str) -> str:
    """Wrap a long text; all lines are indented, or all but the first if `indent` is empty."""
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent or "  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def count_ranks(count: int) -> str:
    """Returns a number of ranks in words: "1 rank", "4 ranks"."""
    return "1 rank" if count == 1 else f"{count} ranks"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0 and 3`, `ranks 0 to 3`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def writes_in_place(collective: str) -> str:
    """Advice for code that uses the return value of a collective such as "all_reduce"."""
    return (
        f"dist.{collective} returns None: it writes its result into a tensor that you pass. Call "
        "it on a separate line, and then use that tensor."
    )
