"""How often something travelled in a step, out of what a rank recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.grading.words import amount, spelled

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = ["travels_once"]

FEW = 1024  # bytes of "a few numbers" besides


def travels_once(events: Sequence[Event], size: int, what: str) -> str:
    """What is wrong where `what`, of `size` bytes, should travel in one all-reduce or in parts.

    And nothing else but a few numbers. Empty if nothing is wrong.
    """
    communication = [event for event in events if event.kind == "comm"]
    sent: Counter[str] = Counter()
    for event in communication:
        sent[event.name] += event.bytes
    for name, count in sent.items():
        if name != "all_reduce" and count > FEW:
            return (
                f"dist.{name} took part, with {amount(count)}. Let {what} travel in all-reduces, "
                "a few numbers besides, and nothing else."
            )
    reduced = sent["all_reduce"]
    if reduced < size:
        return (
            f"the all-reduces have {amount(reduced)}, and {what} {amount(size)}: not all of it "
            "was sent."
        )
    if sum(sent.values()) <= size + FEW:
        return ""
    times = round(reduced / size)
    often = "twice" if times == 2 else f"{spelled(times)} times"
    how = f"{what} travelled {often}: " if times > 1 else ""
    return f"{how}the all-reduces have {amount(reduced)}, and {what} {amount(size)}."
