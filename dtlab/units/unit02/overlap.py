"""02/overlap: a bucket leaves while backward goes on, and nobody waits before it is over.

What decides is the order of events on each rank, not how long they took. The model marks in its
own backward pass when gradients go on to the layer before (`modules.Marked`):

    backward   layer 5 │ layer 4 │ layer 3 │ layer 2 │ layer 1 │ layer 0
    marks              ^         ^         ^         ^         ^ the last one
    bucket 0             leaves ┘                              │
    waiting                                 for no bucket before it
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.topics import right_on_some
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit02.average_gradients import (
    Seen,
    advise_on_groups,
    cannot_count,
    judge_gradients,
    judge_topic,
    of_topic,
    steps_in,
)
from dtlab.units.unit02.average_in_buckets import (
    draw_plan,
    filled_from_the_front,
    judge_number_of_buckets,
    packed,
)
from dtlab.units.unit02.training import (
    Arguments,
    Step,
    Training,
    begin,
    steps_of,
    train,
    trainings_of,
)

_LAYERS = 6  # of the model whose backward pass is watched
_PER_LAYER = 2  # gradients
_ONE_EACH = 4  # bytes: every gradient is a bucket
_LEFT_BEHIND = "What did `finish` leave behind?"


class Overlapping(Training):
    """`finish = fn(module, bucket_bytes)` before the first step, `finish()` after backward."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        module, group = begin(given)
        made: list[Callable[[], Any]] = []

        def before() -> None:
            made.append(fn(module, given.bucket_bytes, **group))
            if not callable(made[0]):
                kind = type(made[0]).__name__
                raise TypeError(f"overlap returns {kind}, not a function to call after backward")

        return train(module, given, before, lambda: made[0]())


def _trials(seed: int) -> list[Trial]:
    """Counted on four ranks; watched on two; 1 to 3 ranks; another order; groups.

    Where gradients come in another order, each is a bucket of its own, and then a bucket has a
    branch and the last gradient of the other one: on some ranks that one is there first.
    """
    draw = random.Random(seed)
    counted, cap, exact = draw_plan(draw)
    chain, tied = draw_nets(draw)
    width, small = draw.randint(9, 16), draw.randint(40, 400)
    layer = 4 * (width * width + width)  # bytes
    marked = Net("marked", (width,) * (_LAYERS + 1), "six layers of one size")
    branches = Net("branches", chain.sizes, "two branches, of which ranks begin with another")
    branch = 4 * sum(a * b + b for a, b in pairwise(chain.sizes))  # bytes
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        Trial(4, [Overlapping(seed, counted, bucket_bytes=n) for n in (cap, exact[0])]),
        Trial(2, [Overlapping(seed, marked, "watched", 3, bucket_bytes=2 * layer)]),
        *(Trial(n, [Overlapping(seed, chain, bucket_bytes=small)]) for n in (1, 2)),
        Trial(3, [Overlapping(seed, net, steps=3, bucket_bytes=100) for net in (chain, tied)]),
        Trial(3, [Overlapping(seed, branches, "order", bucket_bytes=_ONE_EACH)]),
        Trial(2, [Overlapping(seed, branches, "order", bucket_bytes=branch + 4)]),
        Trial(5, [Overlapping(seed, chain, "subgroups", groups=groups, bucket_bytes=100)]),
    ]


def _where_to_look(seen: Seen) -> str:
    """What right and wrong trials have in common, or what a failure or a number hints at."""
    wrong = next(sentence for one in seen for sentence in one.mistakes)
    if "has no attribute 'wait'" in wrong or "has no attribute 'work'" in wrong:
        return (
            "A bucket never left: whose gradients does its hook count? And after the first step: "
            f"{_LEFT_BEHIND.lower()}"
        )
    if _nothing_leaves(seen):
        return f"In step 1 buckets left, and later none does. {_LEFT_BEHIND}"
    some = right_on_some(seen)
    alone = {one.trial.world_size for one in seen if not one.mistakes} == {1}
    if "off the mean" in wrong and (alone or not some):
        early = "oes anybody read or write a bucket before wait() for it has returned?"
        if not alone:
            return f"D{early}"
        return (
            "Right on 1 rank only, where an all-reduce changes nothing: is a sum over all ranks "
            f"divided by how many there are? And d{early}"
        )
    return some


def _nothing_leaves(seen: Seen) -> str:
    """In which later step no bucket leaves though all did in the first one; empty if in none."""
    for one in seen:
        whole = False
        for step in steps_of(one):
            sizes = [size for size, _ in step.case.sizes_of_gradients]
            if step.number == 0:
                whole = sum(event.bytes for event in step.all_reduces) == sum(sizes)
            elif whole and not step.all_reduces:
                return f"{step.words(one)}: no bucket leaves"
    return ""


def _judge_number(seen: Seen) -> Verdict:
    """As in part 3; where nothing leaves after the first step, another advice."""
    verdict = judge_number_of_buckets(seen)
    nothing = _nothing_leaves(of_topic(seen, "gradients")) if verdict.status == "lost" else ""
    return lost(f"{nothing}, and in step 1 all did. {_LEFT_BEHIND}") if nothing else verdict


def _later(step: Step) -> bool:
    """Whether the order of this step counts: in the first one, buckets may still be made."""
    return step.number > 0


def _judge_overlap(seen: Seen) -> Verdict:
    """The first bucket leaves before the gradients of the last layers are there."""
    waiting = cannot_count(seen, "watched")
    if waiting:
        return waiting
    for one, step in steps_in(seen, "watched"):
        if not _later(step):
            continue
        if not step.layers:
            return lost(f"{step.words(one)}: backward was not seen. Leave it as it is.")
        end = step.layers[-1].start
        sizes = [size for size, _ in step.case.sizes_of_gradients][::-1]
        first = packed(sizes, step.case.bucket_bytes)[0]
        sent = sum(event.bytes for event in step.all_reduces if event.start < end)
        whole = sum(event.bytes for event in step.all_reduces)
        if whole != sum(sizes):
            return blocked("judged once each gradient travels in one all-reduce, and nothing else")
        if sent < first:
            what = "less than a bucket leaves" if sent else "nothing leaves"
            return lost(
                f"{step.words(one)}: {what} before backward comes to the first layer, "
                f"{_where_the_first_bucket_is(seen)}"
            )
    return ok("the first bucket leaves while backward goes on")


def _where_the_first_bucket_is(seen: Seen) -> str:
    """Why it has not left: it waits for the first layers, or nobody starts it."""
    if filled_from_the_front(seen):
        return (
            "whose gradients come last: and your first bucket waits for them. Fill buckets from "
            "the last parameter on."
        )
    return (
        "where the first bucket has long been full. Start its all-reduce in the hook of the "
        "gradient that fills it."
    )


def _judge_at_once(seen: Seen) -> Verdict:
    """Each bucket leaves with the gradient that fills it, and not with one of the next layer."""
    waiting = cannot_count(seen, "watched")
    if waiting:
        return waiting
    if _judge_overlap(seen).status != "ok":
        return blocked("judged once a bucket leaves while backward goes on")
    for one, step in steps_in(seen, "watched"):
        if _later(step) and _leaves_late(step):
            return lost(
                f"{step.words(one)}: a bucket is full, and backward goes on to the next layer "
                "before it leaves. Count a gradient first, and look after that whether a bucket "
                "is full."
            )
    for one, step in steps_in(seen, "order"):
        no_rest = step.case.bucket_bytes == _ONE_EACH  # a bucket that never fills may leave late
        if _later(step) and no_rest and not one.mistakes and (kept := _left_for_finish(step)):
            return lost(
                f"{step.words(one)}: {kept} full buckets leave only after backward. When a bucket "
                "leaves, the next one may have been full for long: go on with it, as long as the "
                "next is full."
            )
    return ok("each bucket leaves with the gradient that fills it")


def _left_for_finish(step: Step) -> int:
    """How many buckets leave after backward, when all have been full."""
    over = step.backward
    return sum(over is not None and event.start > over.end for event in step.all_reduces)


def _leaves_late(step: Step) -> bool:
    """Whether backward went on to some layer while a full bucket had not left.

    Gradients of a layer are there before its mark: autograd hands them out before it goes on.
    """
    sizes = [size for size, _ in step.case.sizes_of_gradients][::-1]
    borders = list(accumulate(packed(sizes, step.case.bucket_bytes)))
    for number, mark in enumerate(step.layers, 1):
        there = sum(sizes[: _PER_LAYER * number])
        full = max((border for border in borders if border <= there), default=0)
        if sum(event.bytes for event in step.all_reduces if event.start < mark.start) < full:
            return True
    return False


def _judge_waits(seen: Seen) -> Verdict:
    """No rank waits for a bucket before its own gradients are all there."""
    waiting = cannot_count(seen, "watched")
    if waiting:
        return waiting
    if _judge_overlap(seen).status != "ok":
        return blocked("judged once a bucket leaves while backward goes on")
    for one, step in steps_in(seen, "watched"):
        if not _later(step):
            continue
        end = step.layers[-1].start
        if any(wait.start < end for wait in step.waits):
            return lost(
                f"{step.words(one)}: the rank waits for a bucket while backward still has layers "
                "to go, so the two take turns. Start it with async_op=True, keep what that "
                "returns, and wait for it in `finish`."
            )
    return ok("nobody waits for a bucket before backward is through")


def _advise_on_order(one: Observation) -> str:
    if any(case.bucket_bytes > _ONE_EACH for case in trainings_of(one)):
        return (
            "Here gradients come in another order on some ranks than on others, also those of one "
            "bucket. It is full when all of them are there, whichever comes last."
        )
    return (
        "Here gradients come in another order on some ranks than on others, so another bucket is "
        "full first. All ranks have to start the same all-reduce first: a bucket that is full "
        "waits until those before it have left."
    )


PART = Part(
    name="02/overlap",
    level=2,
    title="Overlap with backward",
    minutes=30,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "gradients",
                2,
                judge_gradients(
                    "after finish() every gradient is the mean, in every step", _where_to_look
                ),
            ),
            Rule("all_reduces", 1, _judge_number),
            Rule("overlap", 2, _judge_overlap),
            Rule("at_once", 1, _judge_at_once),
            Rule("waits", 2, _judge_waits),
            Rule(
                "order",
                1,
                judge_topic(
                    "order", "all ranks send their buckets in the same order", _advise_on_order
                ),
            ),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups", "right on groups of some of the ranks too", advise_on_groups
                ),
            ),
        ),
    ),
    reference="dtlab.parallel.data.data_parallel.DataParallel",
)
