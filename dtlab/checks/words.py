"""Phrases that several messages use, such as "ranks 1 and 3"; messages on known mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtlab.predict.units import counted
from dtlab.ranks.words import count_ranks, ranks_in_words

if TYPE_CHECKING:
    from dtlab.predict import Cluster

__all__ = ["Explanation", "amount", "count_ranks", "links_of", "mistake_of", "nodes_of",
           "ranks_in_words", "spelled"]  # fmt: skip

_SPELLED = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
)  # fmt: skip


class Explanation(str):
    """A message with the known mistake that it reports, in words without the learner's numbers.

    `+` keeps the mistake: `"rank 0: " + message`. Other operations and f-strings return a plain
    `str`.
    """

    mistake: str

    def __new__(cls, message: str, mistake: str = "") -> Explanation:
        explanation = super().__new__(cls, message)
        explanation.mistake = mistake
        return explanation

    def __add__(self, more: str) -> Explanation:
        return Explanation(str.__add__(self, more), self.mistake)

    def __radd__(self, before: str) -> Explanation:
        return Explanation(str.__add__(before, self), self.mistake)


def mistake_of(message: str) -> str:
    """Returns the known mistake that a message reports; "" if the message is no `Explanation`."""
    return message.mistake if isinstance(message, Explanation) else ""


def amount(count: float) -> str:
    """Returns `count` bytes in decimal units: "6.3 MB", "12 kB", "40 bytes"."""
    if count >= 1e5:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else counted(round(count), "byte")


def spelled(count: int) -> str:
    """Returns a count as prose writes it: "two" or "twelve" in words, and from "13" in digits."""
    return _SPELLED[count] if 0 <= count < len(_SPELLED) else str(count)


def nodes_of(cluster: Cluster) -> str:
    """Describes the nodes of a cluster: "two nodes of four ranks", "one node of one rank"."""
    nodes, ranks = cluster.nodes, cluster.gpus_per_node
    return (
        f"{spelled(nodes)} node{'s' * (nodes != 1)} of {spelled(ranks)} rank{'s' * (ranks != 1)}"
    )


def links_of(cluster: Cluster) -> str:
    """Describes the links of a cluster: "25 GB/s and 5 µs between nodes"."""
    return str(cluster).partition(", ")[2]
