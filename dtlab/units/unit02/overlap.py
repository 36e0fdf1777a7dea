"""02/overlap: send each bucket while backward runs, and wait only when backward is over.

The check judges the order of events on each rank, not their durations. In its backward pass the
model marks when it passes gradients on to the previous layer (`modules.Marked`):
    backward   layer 5 │ layer 4 │ layer 3 │ layer 2 │ layer 1 │ layer 0
    marks              ^         ^         ^         ^         ^ the last one
    bucket 0          is sent ┘                                │
    waiting                            no wait before this mark
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Seen, fault, right_on_some, rule
from dtlab.checks.functions.groups import draw_groups
from dtlab.checks.functions.nets import Net, draw_nets
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit02.average_in_buckets import Counted, draw_plan, packed, wrong_number
from dtlab.units.unit02.training import LOST_BY, Arguments, Step, steps_of, train

_LAYERS = 6  # of the model whose backward pass is marked
_PER_LAYER = 2  # gradients
_ONE_EACH = 4  # bytes: every gradient is a bucket

_LEFT_BEHIND = "Which state did `finish` not reset?"
_OTHER_ORDER = "Here gradients become ready in different orders on different ranks"
_OTHER_BUCKETS = (
    f"{_OTHER_ORDER}, so another bucket is full first. All ranks must start the same all-reduce "
    "first: hold a full bucket back until the buckets before it have been sent, and then go on "
    "sending while the next bucket is full."
)
_WITHIN_A_BUCKET = (
    f"{_OTHER_ORDER}, even within one bucket. A bucket is full when all of its gradients are "
    "ready, whichever comes last."
)


class Overlapping(Counted):
    """Calls `finish = fn(module, bucket_bytes)` before step 1, and `finish()` after backward."""

    also_shows: ClassVar = {"watched": ("overlap", "at_once", "waits")}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        def before_backward(module: Any, **group: Any) -> Callable[[], Any]:
            finish: Callable[[], Any] = fn(module, given.bucket_bytes, **group)
            if not callable(finish):
                kind = type(finish).__name__
                raise TypeError(
                    f"overlap returns {kind}, not a function to call after backward. End with "
                    "`return finish`, without brackets."
                )
            return finish

        return train(given, before_backward)

    def wrong_step(self, step: Step) -> Iterator[Fault]:
        if self.counted:
            if step.number and not step.all_reduces:
                words = f"no bucket is sent, although step 1 sent them all. {_LEFT_BEHIND}"
                yield "all_reduces", words
            else:
                yield from wrong_number(step)
        # In the first step the function may still be building its buckets.
        if self.topic == "watched" and step.number:
            yield from _wrong_times(step)
        # A bucket that never fills is sent late. Here each gradient fills a bucket by itself.
        if self.topic == "order" and step.number and self.bucket_bytes == _ONE_EACH:
            end = step.marks("backward")[0].end
            late = sum(event.start > end for event in step.all_reduces)
            if late and not fault([step.run], "order"):
                yield (
                    "at_once",
                    f"{counted(late, 'full bucket')} {'is' if late == 1 else 'are'} sent only "
                    "after backward. When you send a bucket, "
                    "the next one may be full already: go on sending in a loop while the next "
                    "bucket is full.",
                )


def _wrong_times(step: Step) -> Iterator[Fault]:
    """Yields a fault if a bucket is sent too late, or if the rank waits during backward."""
    layers, sizes = step.marks("layer"), step.case.sizes
    if not layers:
        yield "overlap", "backward was not recorded. Do not change the backward pass."
        return
    if step.sent() != sum(sizes):
        yield "whole", "each gradient must be sent in one all-reduce, and nothing else."
    full = list(accumulate(packed(sizes, step.case.bucket_bytes)))
    end = layers[-1].start
    if step.sent(end) < full[0]:
        yield (
            "overlap",
            f"{'less than a bucket' if step.sent(end) else 'nothing'} is sent before backward "
            "reaches the first layer. Fill buckets from the last parameter on, and start an "
            "all-reduce in the hook of the gradient that fills the bucket.",
        )
    for number, mark in enumerate(layers, 1):
        # Autograd delivers all gradients of a layer before those of the next layer.
        ready = sum(sizes[: _PER_LAYER * number])
        if step.sent(mark.start) < max([0, *(size for size in full if size <= ready)]):
            yield (
                "at_once",
                "a bucket is full, but backward goes on to the next layer before you send it. "
                "Count a gradient first, and then test whether a bucket is full.",
            )
    if any(wait.start < end for wait in step.marks("wait")):
        yield (
            "waits",
            "the rank waits for a bucket while backward still has layers to compute, so the two "
            "do not overlap. Start the all-reduce with async_op=True, store the handle that it "
            "returns, and wait for it in `finish`.",
        )


def _trials(seed: int) -> list[Trial]:
    """Trials that count all-reduces, judge times, and vary ranks, orders of gradients and groups.

    Two trials have gradients in different orders. In one, each gradient is a bucket. In the other,
    a bucket holds one branch and the last gradient of the other branch, which is ready first on
    some ranks.
    """
    draw = random.Random(seed)
    frozen, cap, exact = draw_plan(draw)
    chain, tied = draw_nets(draw)
    width, small = draw.randint(9, 16), draw.randint(40, 400)
    layer = 4 * (width * width + width)  # bytes
    marked = Net("marked", (width,) * (_LAYERS + 1), "six layers of one size")
    branches = Net("branches", chain.sizes, "two branches that ranks run in different orders")
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
    """Advice on the cause, from the error message and the trials that fail; may be empty."""
    failures = (trial.failure for trial in trials if trial.failure is not None)
    if any(", in before_backward\n" in (each.traceback or "") for each in failures):
        return (
            "This line runs before any backward. If it belongs to `finish`: return that function, "
            "and do not call it."
        )
    if "has no attribute 'wait'" in words or "has no attribute 'work'" in words:
        return (
            "A bucket was never sent: which gradients does its hook count? And after step 1: "
            f"{_LEFT_BEHIND.lower()}"
        )
    if "'NoneType' object has no attribute" in words:
        return "A gradient of this bucket has not arrived yet: its `.grad` is still None."
    silent = (step for trial in trials for step in steps_of(trial) if not step.all_reduces)
    if {step.number > 0 for step in silent} == {True}:
        return f"Step 1 sends its buckets, and later steps send none. {_LEFT_BEHIND}"
    some = right_on_some(trials)
    alone = {trial.trial.world_size for trial in trials if not trial.mistakes} == {1}
    early = "oes your code read or write a bucket before wait() for it has returned?"
    unknown = any(fact in words for fact in ("is off by", "holds zeros"))
    if not unknown or (some and not alone):
        return some
    if not alone:
        return f"D{early}"
    return (
        "Right on 1 rank only, where an all-reduce changes nothing: is a sum over all ranks "
        f"divided by the number of ranks? And d{early}"
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
                "the first bucket is sent while backward runs",
                *_WHOLE,
                finish=True,
            ),
            rule(
                "at_once",
                1,
                "each bucket is sent when a gradient fills it",
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
