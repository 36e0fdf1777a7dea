"""02/overlap: a bucket leaves while backward goes on, and no rank waits before it is over.

What decides is the order of events on each rank, not how long they took. The model marks in its
own backward pass when gradients go on to the layer before (`modules.Marked`):

    backward   layer 5 │ layer 4 │ layer 3 │ layer 2 │ layer 1 │ layer 0
    marks              ^         ^         ^         ^         ^ the last one
    bucket 0             leaves ┘                              │
    waiting                                 for no bucket before it
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Seen, fault, right_on_some, rule
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.unseen import FOREIGN
from dtlab.grading.parts import Part
from dtlab.units.unit02.average_in_buckets import Counted, draw_plan, packed, wrong_number
from dtlab.units.unit02.training import LOST_BY, Arguments, Step, steps_of, train

_LAYERS = 6  # of the model whose backward pass is watched
_PER_LAYER = 2  # gradients
_ONE_EACH = 4  # bytes: every gradient is a bucket

_LEFT_BEHIND = "What did `finish` leave behind?"
_OTHER_ORDER = "Here gradients come in another order on some ranks than on others"
_OTHER_BUCKETS = (
    f"{_OTHER_ORDER}, so another bucket is full first. All ranks must start the same all-reduce "
    "first: a bucket that is full waits until those before it have left."
)
_WITHIN_A_BUCKET = (
    f"{_OTHER_ORDER}, also those of one bucket. It is full when all of them are there, whichever "
    "comes last."
)


class Overlapping(Counted):
    """`finish = fn(module, bucket_bytes)` before the first step, `finish()` after backward."""

    also_shows: ClassVar = {"watched": ("overlap", "at_once", "waits")}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        def start(module: Any, **group: Any) -> Callable[[], Any]:
            finish: Callable[[], Any] = fn(module, given.bucket_bytes, **group)
            if not callable(finish):
                kind = type(finish).__name__
                raise TypeError(f"overlap returns {kind}, not a function to call after backward")
            return finish

        return train(given, start)

    def wrong_step(self, step: Step) -> Iterator[Fault]:
        if self.counted:
            if step.number and not step.all_reduces:
                words = f"no bucket leaves, and in step 1 all did. {_LEFT_BEHIND}"
                yield "all_reduces", words
            else:
                yield from wrong_number(step)
        # In the first step buckets may still be made.
        if self.topic == "watched" and step.number:
            yield from _wrong_times(step)
        # A bucket that never fills leaves late. Here none has to wait for another gradient.
        if self.topic == "order" and step.number and self.bucket_bytes == _ONE_EACH:
            end = step.marks("backward")[0].end
            kept = sum(event.start > end for event in step.all_reduces)
            if kept and not fault([step.one], "order"):
                yield (
                    "at_once",
                    f"{kept} full buckets leave only after backward. When a bucket leaves, the "
                    "next one may have been full for long: go on with it, as long as the next is "
                    "full.",
                )


def _wrong_times(step: Step) -> Iterator[Fault]:
    """When buckets leave and the rank waits, while backward goes on from layer to layer."""
    layers, sizes = step.marks("layer"), step.case.sizes
    if not layers:
        yield "overlap", "backward was not seen. Leave it as it is."
        return
    if step.sent() != sum(sizes):
        yield "whole", "each gradient travels in one all-reduce, and nothing else."
    full = list(accumulate(packed(sizes, step.case.bucket_bytes)))
    end = layers[-1].start
    if step.sent(end) < full[0]:
        yield (
            "overlap",
            f"{'less than a bucket' if step.sent(end) else 'nothing'} leaves before backward "
            "comes to the first layer. Fill buckets from the last parameter on, and start an "
            "all-reduce in the hook of the gradient that fills the bucket.",
        )
    for number, mark in enumerate(layers, 1):
        # Autograd hands out the gradients of a layer before it goes on.
        there = sum(sizes[: _PER_LAYER * number])
        if step.sent(mark.start) < max([0, *(size for size in full if size <= there)]):
            yield (
                "at_once",
                "a bucket is full, and backward goes on to the next layer before it leaves. "
                "Count a gradient first, and look after that whether a bucket is full.",
            )
    if any(wait.start < end for wait in step.marks("wait")):
        yield (
            "waits",
            "the rank waits for a bucket while backward still has layers to go, so the two take "
            "turns. Start it with async_op=True, keep what that returns, and wait for it in "
            "`finish`.",
        )


def _trials(seed: int) -> list[Trial]:
    """Counted on four ranks; watched on two; 1 to 3 ranks; another order; groups.

    Where gradients come in another order, each is a bucket of its own, and then a bucket has a
    branch and the last gradient of the other one: on some ranks that one is there first.
    """
    draw = random.Random(seed)
    frozen, cap, exact = draw_plan(draw)
    chain, tied = draw_nets(draw)
    width, small = draw.randint(9, 16), draw.randint(40, 400)
    layer = 4 * (width * width + width)  # bytes
    marked = Net("marked", (width,) * (_LAYERS + 1), "six layers of one size")
    branches = Net("branches", chain.sizes, "two branches, of which ranks begin with another")
    branch = 4 * sum(a * b + b for a, b in pairwise(chain.sizes))  # bytes
    groups = draw_groups(draw, world_size=5, size=3)
    counted = [
        Overlapping(seed, frozen, bucket_bytes=n, counted=("all_reduces",))
        for n in (cap, exact[0])
    ]
    orders = (3, _ONE_EACH, _OTHER_BUCKETS), (2, branch + 4, _WITHIN_A_BUCKET)
    return [
        Trial(4, counted),
        Trial(2, [Overlapping(seed, marked, "watched", 3, bucket_bytes=2 * layer)]),
        *(Trial(n, [Overlapping(seed, chain, bucket_bytes=small)]) for n in (1, 2)),
        Trial(3, [Overlapping(seed, net, steps=3, bucket_bytes=100) for net in (chain, tied)]),
        *(
            Trial(ranks, [Overlapping(seed, branches, "order", bucket_bytes=size, hint=hint)])
            for ranks, size, hint in orders
        ),
        Trial(5, [Overlapping(seed, chain, "subgroups", groups=groups, bucket_bytes=100)]),
    ]


def _where_to_look(trials: Seen, words: str) -> str:
    """What right and wrong trials have in common, or what a failure or a number hints at."""
    if "has no attribute 'wait'" in words or "has no attribute 'work'" in words:
        return (
            "A bucket never left: whose gradients does its hook count? And after the first step: "
            f"{_LEFT_BEHIND.lower()}"
        )
    silent = (step for one in trials for step in steps_of(one) if not step.all_reduces)
    if {step.number > 0 for step in silent} == {True}:
        return f"In step 1 buckets left, and later none does. {_LEFT_BEHIND}"
    some = right_on_some(trials)
    alone = {one.trial.world_size for one in trials if not one.mistakes} == {1}
    early = "oes your code read or write a bucket before wait() for it has returned?"
    if "off the mean" not in words or (some and not alone):
        return some
    if not alone:
        return f"D{early}"
    return (
        "Right on 1 rank only, where an all-reduce changes nothing: is a sum over all ranks "
        f"divided by how many there are? And d{early}"
    )


_WHOLE = "whole", FOREIGN

PART = Part(
    name="02/overlap",
    level=2,
    title="Overlap with backward",
    minutes=30,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "gradients",
                2,
                "after finish() every gradient is the mean, in every step",
                lost_by=LOST_BY,
                advice=_where_to_look,
            ),
            rule("all_reduces", 1, "one all-reduce for each bucket", FOREIGN),
            rule(
                "overlap",
                2,
                "the first bucket leaves while backward goes on",
                *_WHOLE,
                finish=True,
            ),
            rule(
                "at_once",
                1,
                "each bucket leaves with the gradient that fills it",
                *_WHOLE,
                "overlap",
                finish=True,
            ),
            rule(
                "waits",
                2,
                "no rank waits for a bucket during backward",
                *_WHOLE,
                "overlap",
                finish=True,
            ),
            rule(
                "order", 1, "all ranks send their buckets in the same order", "gradients", FOREIGN
            ),
            rule("subgroups", 1, "right on groups of some of the ranks too", "gradients", FOREIGN),
        ),
    ),
    reference="dtlab.parallel.data.data_parallel.DataParallel",
)
