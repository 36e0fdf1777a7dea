"""02/average_gradients: after backward, one all-reduce for each gradient."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dtlab.grading.checking import topics
from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.topics import Seen, of_topic, right_on_some
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.unseen import unseen_collectives, unseen_source
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit02.training import (
    OWN_GRADIENT,
    Arguments,
    Step,
    Trained,
    Training,
    begin,
    steps_of,
    train,
    trainings_of,
)

__all__ = [
    "PART",
    "Seen",
    "advise_on_groups",
    "amounts",
    "cannot_count",
    "judge_all_reduces",
    "judge_gradients",
    "judge_topic",
    "of_topic",
    "steps_in",
]

# What the judges of Level II share: whose work it was, the gradients, topics, all-reduces --------


def steps_in(seen: Seen, topic: str) -> list[tuple[Observation, Step]]:
    """The steps of these trials, on every rank."""
    return [(one, step) for one in of_topic(seen, topic) for step in steps_of(one)]


# Whose work it was ------------------------------------------------------------------------------


def foreign(seen: Seen) -> str:
    """How gradients moved where the check cannot see it; empty where it can."""
    return next(filter(None, map(_foreign, seen)), "")


def _foreign(one: Observation) -> str:
    name = called_by(result for results in one.results for result in results)
    if name:
        return (
            f"{name} does the work for you, and finished code does not count: use "
            "dist.all_reduce and what PyTorch has for hooks."
        )
    return unseen_collectives(one) or ("" if one.mistakes else _unseen_source(one))


def _unseen_source(one: Observation) -> str:
    """The gradients are right, but too little travelled for that."""
    cases = trainings_of(one)
    size = sum(case.steps * sum(count for count, _ in case.sizes_of_gradients) for case in cases)
    trained = any(isinstance(r, Trained) for results in one.results for r in results)
    groups = cases[0].groups if cases else ()
    return unseen_source(one, "the gradients are", size, groups) if trained else ""


# Criteria that several parts have ---------------------------------------------------------------


def judge_gradients(right: str, pattern: Callable[[Seen], str] = lambda _: "") -> Judge:
    """Judges gradients over all ranks: `right` is said where they are so.

    `pattern` tells what right and wrong trials have in common, where that says where to look.
    """

    def judge(seen: Seen) -> Verdict:
        trials = of_topic(seen, "gradients")
        luck = next(filter(None, map(_not_waited_for, trials)), "")
        if luck or foreign(seen):
            return lost(luck or foreign(seen))
        wrong = [sentence for one in trials for sentence in one.mistakes]
        if wrong:
            why = _elsewhere(wrong[0], trials) or pattern(trials)
            return lost("\n".join(filter(None, (wrong[0], why))))
        return ok(right)

    return judge


def _elsewhere(mistake: str, seen: Seen) -> str:
    """What to look at where something is summed, and gradients are never the wiser."""
    summed = any(step.all_reduces for one in seen for step in steps_of(one))
    ever_right = any(one.trial.world_size > 1 and not one.mistakes for one in seen)
    if OWN_GRADIENT not in mistake or not summed or ever_right:
        return ""
    return (
        "There were all-reduces, and none left its result in this `.grad`. dist.all_reduce "
        "changes the tensor that it is handed: is that this gradient? Of a copy, or of pieces put "
        "together, the result has to be written back."
    )


def _not_waited_for(one: Observation) -> str:
    """Says that nobody waits for an all-reduce, whatever has come of it; empty if none."""
    for step in steps_of(one):
        if len(step.waits) < len(step.all_reduces):
            return (
                f"{step.words(one)}: nobody waits for a dist.all_reduce with async_op=True, so "
                "its result may be there or not. Keep what it returns, and call wait() on it, "
                "also where is_completed() has said True."
            )
    return ""


def judge_topic(
    topic: str,
    right: str,
    advice: Callable[[Observation], str],
    after: tuple[str, str] | None = None,
    whatever_the_gradients: bool = False,
) -> Judge:
    """As `topics.judge_topic`, once plain gradients are right.

    And those of the topic `after`, which comes with what has to be right in it, in words. What
    does not need them is judged `whatever_the_gradients` are, if the ranks come back with some.
    """

    def waits(seen: Seen) -> Verdict | None:
        waiting = _own_calls(seen)
        came_back = not any(one.error for one in of_topic(seen, "gradients"))
        if waiting is None and not (whatever_the_gradients and came_back):
            waiting = _waits(seen)
        if waiting is None and after and any(one.mistakes for one in of_topic(seen, after[0])):
            return blocked(f"judged once {after[1]}")
        return waiting

    return topics.judge_topic(topic, right, advice, waits)


def _own_calls(seen: Seen) -> Verdict | None:
    if foreign(seen):
        return blocked("judged once your own calls average the gradients")
    return None


def _waits(seen: Seen) -> Verdict | None:
    if any(one.mistakes for one in of_topic(seen, "gradients")):
        return blocked("judged once the gradients over all ranks are right")
    return None


def cannot_count(seen: Seen, topic: str) -> Verdict | None:
    """Why the all-reduces of these trials say nothing, None where they do."""
    waiting = _own_calls(seen)
    if waiting:
        return waiting
    trials = of_topic(seen, topic)
    if not trials or any(one.trace is None for one in trials):
        return blocked("judged once the ranks come back")
    return None


def advise_on_groups(one: Observation) -> str:
    """What to look at where it goes wrong on groups alone."""
    message = one.failure.message if one.failure is not None else one.mistakes[0]
    if "'group'" in message:
        return "Your function takes no `group`: write group=None as its last argument."
    give = "Hand `group` to every call of torch.distributed: without it, all ranks take part."
    if "not part of group" in message or "src" in message:
        return (
            "In a group, src= is a global rank: dist.get_process_group_ranks(group) lists the "
            "members, and group_src= counts within the group."
        )
    if "began with" in message:
        return f"{give} The first member's parameters are wanted: group_src=0 counts in the group."
    return f"{give} And divide by dist.get_world_size(group)."


def amounts(one: int, other: int) -> tuple[str, str]:
    """Two different counts of bytes in words, to the byte where they would read the same."""
    if amount(one) != amount(other):
        return amount(one), amount(other)
    return f"{one} bytes", f"{other} bytes"


# The part ----------------------------------------------------------------------------------------


class Afterwards(Training):
    """`fn(module)` is called when `.grad` is there."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        module, group = begin(given)
        return train(module, given, lambda: None, lambda: fn(module, **group))


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks; then parameters without a gradient, and groups."""
    draw = random.Random(seed)
    nets = draw_nets(draw)
    trials = [Trial(ranks, [Afterwards(seed, net) for net in nets]) for ranks in (4, 1, 2, 3)]
    skipping = Net("skipping", (*nets[0].sizes, 5), "a frozen and an unused layer")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *trials,
        Trial(3, [Afterwards(seed, skipping, topic="frozen")]),
        Trial(5, [Afterwards(seed, nets[0], topic="subgroups", groups=groups)]),
    ]


def judge_all_reduces(seen: Seen) -> Verdict:
    """No more of them than there are gradients, and nothing else."""
    waiting = cannot_count(seen, "gradients")
    if waiting:
        return waiting
    for one, step in steps_in(seen, "gradients"):
        if one.trial.world_size == 1:
            continue
        most, count = len(step.case.sizes_of_gradients), len(step.all_reduces)
        if step.others:
            names = " and ".join(f"dist.{name}" for name in step.others)
            return lost(
                f"{step.words(one)}: {names} took part. One dist.all_reduce for each gradient is "
                "all that it takes."
            )
        if count > most:
            return lost(
                f"{step.words(one)}: {count} all-reduces for {most} gradients. Look for a loop "
                "that comes to the same parameter twice, or for what all ranks know anyway."
            )
        if count == 0:
            return lost(f"{step.words(one)}: no all-reduce at all. dist.all_reduce sums in place.")
        travelled = sum(event.bytes for event in step.all_reduces)
        gradients = sum(size for size, _ in step.case.sizes_of_gradients)
        if travelled > gradients:
            more, enough = amounts(travelled, gradients)
            return lost(
                f"{step.words(one)}: the all-reduces carry {more}, and the gradients are "
                f"{enough}. Hand each gradient over as it is: in its own dtype, and nothing "
                "beside it."
            )
    return ok("one all-reduce for each gradient, and nothing else")


def _advise_on_frozen(one: Observation) -> str:
    return (
        "A frozen parameter has no gradient, nor has one that the model did not use: `.grad` is "
        "None there, and stays so."
    )


PART = Part(
    name="02/average_gradients",
    level=2,
    title="Average the gradients",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "gradients",
                2,
                judge_gradients(
                    "every gradient is the mean, on 1 to 4 ranks, in every step", right_on_some
                ),
            ),
            Rule(
                "frozen",
                1,
                judge_topic(
                    "frozen", "parameters without a gradient are left alone", _advise_on_frozen
                ),
            ),
            Rule("all_reduces", 1, judge_all_reduces),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups", "right on groups of some of the ranks too", advise_on_groups
                ),
            ),
        ),
    ),
)
