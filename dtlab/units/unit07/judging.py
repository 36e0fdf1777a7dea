"""What the judges of Level II share: a time limit, and trials that may not have been run."""

from __future__ import annotations

from collections.abc import Callable

from dtlab.grading.checking.checks import Judge, Verdict, blocked
from dtlab.grading.checking.faults import judge
from dtlab.grading.checking.topics import Seen, of_topic

__all__ = ["LIMIT", "judge_of"]

LIMIT = 2.0  # seconds for what is worked out without ranks: a right answer takes a hundredth


def judge_of(
    topic: str, name: str, right: str, *before: str, also: Callable[[Seen], str] = lambda _: ""
) -> Judge:
    """As `judge`, of trials of this topic: there are none where one before them hangs."""

    def judged(seen: Seen) -> Verdict:
        if not of_topic(seen, topic):
            return blocked("judged once what is tried before it comes back")
        return judge(name, right, *before, also=also)(seen)

    return judged
