"""03/accumulate_over_ranks: the same over ranks that differ, with one journey of the gradients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked
from dtlab.grading.checking.criteria import Fault, Noted, Seen, of_topic, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.unseen import FOREIGN
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.grading.words import amount, spelled
from dtlab.units.unit03.shares import loss_sum
from dtlab.units.unit03.training import (
    FINISHED,
    Accumulating,
    Arguments,
    begin,
    gradients_of,
    in_each_step,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART", "travels_once"]

_FEW = 1024  # bytes of "a few numbers" that may travel besides


def travels_once(events: Sequence[Event], size: int, what: str) -> str:
    """What is wrong where `what`, of `size` bytes, should travel in one all-reduce or in parts.

    And nothing else but a few numbers. Empty if nothing is wrong.
    """
    sent: Counter[str] = Counter()
    for event in events:
        if event.kind == "comm":
            sent[event.name] += event.bytes
    for name, count in sent.items():
        if name != "all_reduce" and count > _FEW:
            return (
                f"dist.{name} took part, with {amount(count)}. Let {what} travel in all-reduces, "
                "a few numbers besides, and nothing else."
            )
    reduced = f"the all-reduces have {amount(sent['all_reduce'])}, and {what} {amount(size)}"
    if sent["all_reduce"] < size:
        return f"{reduced}: not all of it was sent."
    if sum(sent.values()) <= size + _FEW:
        return ""
    times = round(sent["all_reduce"] / size)
    often = "twice" if times == 2 else f"{spelled(times)} times"
    return (f"{what} travelled {often}: " if times > 1 else "") + f"{reduced}."


def _travels_often(seen: Seen) -> str:
    """More travels than the gradients once in a step, and a few numbers."""
    for where, size, events in in_each_step(seen, "equal"):
        wrong = travels_once(events, size, "the gradients")
        if wrong:
            return (
                f"{where}: {wrong} Nothing travels within no_sync, to which the forward pass "
                "belongs too, that of the model and not of its `.module`. The wrapper averages by "
                "itself in the last backward pass."
            )
    return ""


@dataclass(frozen=True)
class Breaking(Accumulating):
    """A microbatch raises; then a plain backward pass, in which gradients should be averaged."""

    topic: str = "left"

    @property
    def reduced(self) -> list[int]:
        """Nothing: it is not looked at what travels."""
        return []

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        module, model = begin(given)
        calls = []

        def breaking(outputs: Tensor, targets: Tensor) -> Tensor:
            calls.append(len(outputs))
            if len(calls) == 2 or len(outputs) > len(given.steps[0][0][0]):
                raise RuntimeError("the loss of the second microbatch")
            return loss_sum(outputs, targets)

        caught = None  # it holds on to the learner's frames, as in a notebook
        with finished_calls(*FINISHED, refuse=True):
            try:
                fn(model, breaking, given.steps[0])
            except Exception as error:  # noqa: BLE001  a learner may raise another one from it
                caught = error
        module.zero_grad()
        inputs, targets = given.steps[0][0]
        loss_sum(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        return {"came_through": caught is not None, "gradients": gradients_of(module)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        if not all(one["came_through"] for one in results):
            yield "left", "loss_sum raised an error, and it did not come through: let it pass."
            return
        (shares,) = next(iter(self.shares.values()))
        wanted = torch.stack([sums[0] for sums in shares.sums.values()]).mean(0)
        for rank, one in enumerate(results):
            got = torch.cat([part.flatten() for part in one["gradients"] if part is not None])
            if not close(got, wanted):
                yield (
                    "left",
                    f"rank {rank}: after an error in a microbatch the model is still in no_sync, "
                    "and averages nothing any more. A `with` is left by an error too.",
                )
                return


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Equal ranks, where bytes are counted; uneven ones; what is in `.grad`; an error; groups."""
    draw = random.Random(seed)
    wide = Net("chain", (draw.randint(8, 12), 64, 64, draw.randint(5, 8)), "three layers")
    small = Net("frozen", tuple(draw.sample(range(4, 13), 5)), "a frozen and other layers")
    n = draw.randint(5, 7)
    groups = draw_groups(draw, world_size=4, size=2)

    def trial(
        topic: str, *ranks: tuple[tuple[int, ...], ...], net: Net = small, **more: Any
    ) -> Trial:
        kind = Breaking if topic == "left" else Accumulating
        both = [kind(seed, net, ranks, topic, each, **more) for each in ("ddp", "dtlab")]
        return Trial(len(ranks), both)

    a, b, c = draw.sample(range(2, 8), 3)
    return [
        trial("equal", *(((n, n, n), (n, n)),) * 4, net=wide),
        trial("equal", ((n, n, n, n),)),
        trial("uneven", ((a, b), (c,)), ((c, 1, a), (a, 0)), ((0,), (b, b, 1))),
        trial("added", *(((a, a),),) * 2, has_before=True),
        trial("left", *(((a,) * 3,),) * 2),
        trial("subgroups", ((a, b),), ((c,),), ((b, 1),), ((a, a, c),), groups=groups),
    ]


_ONCE = rule(
    "once",
    2,
    "the gradients travel once in a step, and a few numbers",
    also=_travels_often,
    after="equal",
)
_UNEVEN = rule(
    "uneven",
    3,
    "right where ranks differ in samples and microbatches, and where one has no samples",
)


def _judge_uneven(seen: Seen) -> Verdict:
    """What hangs because gradients travel more than once is told there."""
    if _ONCE.judge(seen).status == "lost" and any(one.hung for one in of_topic(seen, "uneven")):
        return blocked(
            "judged once the gradients travel once: ranks have different numbers of microbatches "
            "here, and those of the last ones wait for ranks that have none left"
        )
    return _UNEVEN.judge(seen)


PART = Part(
    name="03/accumulate_over_ranks",
    level=2,
    title="Accumulate over ranks",
    minutes=30,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "equal",
                2,
                "right on 1 and 4 ranks where all microbatches are equal",
                lost_by=("equal", FOREIGN),
            ),
            Rule("uneven", 3, _judge_uneven, after="equal"),
            _ONCE,
            rule("added", 1, "added to what is in .grad already", after="equal"),
            rule("graphs", 1, "the graph of one microbatch at a time", after="equal"),
            rule("left", 1, "no_sync is left by an error too", after="once"),
            rule(
                "subgroups",
                1,
                "right where the model averages over some of the ranks",
                after="uneven",
            ),
            rule("loss", 1, "returns the mean loss over the samples of all ranks", after="uneven"),
        ),
        compiles=True,
    ),
    reference="dtlab.training.accumulation.accumulate",
)
