"""Criteria that have trials of their own: an error in one trial leaves the others to be judged."""

from __future__ import annotations

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.criteria import Faulty, Seen, of_topic, rule

__all__ = ["Separate", "separate_rule"]


class Separate(Faulty):
    """A case that shows one criterion, its `topic`."""

    def shows(self, criterion: str) -> bool:
        return criterion == self.topic


def separate_rule(name: str, points: float, right: str, *before: str) -> Rule:
    """The criterion of the trials with this topic: see `rule`.

    It is lost if these trials were not run, because an earlier one hung.
    """

    def untried(seen: Seen) -> str:
        tried = of_topic(seen, name)
        return "" if tried else "not tried, because the ranks do not finish an earlier trial."

    return rule(name, points, right, *before, also=untried)
