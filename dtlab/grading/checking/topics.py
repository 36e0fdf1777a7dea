"""Trials that are there to show one thing: all of their cases have it as `topic`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtlab.grading.checking.checks import Judge, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Observation

__all__ = ["Seen", "judge_topic", "of_topic", "right_on_some"]

Seen = Sequence[Observation]


def of_topic(seen: Seen, topic: str) -> list[Observation]:
    """The trials that are there to show this."""
    return [
        one for one in seen if any(getattr(case, "topic", "") == topic for case in one.trial.cases)
    ]


def judge_topic(
    topic: str,
    right: str,
    advice: Callable[[Observation], str],
    waits: Callable[[Seen], Verdict | None],
) -> Judge:
    """Judges whether nothing is wrong in the trials of a topic: then `right` is said.

    `waits` says why that cannot be judged yet, None where it can; `advice` what to look at.
    """

    def judge(seen: Seen) -> Verdict:
        waiting = waits(seen)
        if waiting:
            return waiting
        trials = of_topic(seen, topic)
        if not trials:
            return blocked("judged once the ranks come back from what is tried before it")
        for one in trials:
            if one.mistakes:
                return lost(f"{one.mistakes[0]}\n{advice(one)}".rstrip())
        return ok(right)

    return judge


def right_on_some(seen: Seen) -> str:
    """What numbers of ranks have in common on which it is right, where some are; else empty."""
    right = {one.trial.world_size for one in seen if not one.mistakes}
    if not right or right == {one.trial.world_size for one in seen}:
        return ""
    ranks = " and ".join(map(str, sorted(right)))
    return f"Right on {ranks} rank{'s' * (right != {1})} only: what depends on how many there are?"
