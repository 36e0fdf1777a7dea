"""03/accumulate_over_ranks: the same over ranks that differ, with one journey of the gradients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.unseen import inside_marks
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.grading.words import amount, spelled
from dtlab.units.unit03.accumulate import (
    judge_equal,
    judge_graphs,
    judge_losses,
    judge_topic,
    waits,
)
from dtlab.units.unit03.shares import loss_sum
from dtlab.units.unit03.training import (
    FINISHED,
    Accumulating,
    Arguments,
    begin,
    gradients_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART", "travels_once"]

# How often something travelled in a step, out of what a rank recorded ----------------------------

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


# The part ----------------------------------------------------------------------------------------

_WRAPPERS = ("ddp", "dtlab")


class Broken(Exception):
    """What the loss of the second microbatch raises."""


@dataclass(frozen=True)
class Breaking(Accumulating):
    """A microbatch raises; then a plain backward pass, in which gradients should be averaged."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    topic: str = "left"

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        module, model = begin(given)
        calls = []

        def breaking(outputs: Tensor, targets: Tensor) -> Tensor:
            calls.append(len(outputs))
            if len(calls) == 2 or len(outputs) > len(given.steps[0][0][0]):
                raise Broken("the loss of the second microbatch")
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

    def opened(self, result: Any) -> Any:
        return result["came_through"] is True, list(result["gradients"])

    def mistake(self, results: Sequence[Any]) -> str:
        import torch

        if not all(came for came, _ in results):
            return "loss_sum raised an error, and it did not come through: let it pass."
        (shares,) = next(iter(self.shares.values()))
        wanted = torch.stack([sums[0] for sums in shares.sums.values()]).mean(0)
        for rank, (_, gradients) in enumerate(results):
            got = torch.cat([one.flatten() for one in gradients if one is not None])
            if not close(got, wanted):
                return (
                    f"rank {rank}: after an error in a microbatch the model is still in no_sync, "
                    "and averages nothing any more. A `with` is left by an error too."
                )
        return ""


def _trials(seed: int) -> list[Trial]:
    """Equal ranks, where bytes are counted; uneven ones; what is in `.grad`; an error; groups."""
    draw = random.Random(seed)
    wide = Net("chain", (draw.randint(8, 12), 64, 64, draw.randint(5, 8)), "three layers")
    small = Net("frozen", tuple(draw.sample(range(4, 13), 5)), "a frozen and other layers")
    n = draw.randint(5, 7)
    groups = draw_groups(draw, world_size=4, size=2)

    def cases(net: Net, topic: str, *ranks: tuple[tuple[int, ...], ...], **more: Any) -> list[Any]:
        return [Accumulating(seed, net, ranks, topic, each, **more) for each in _WRAPPERS]

    a, b, c = draw.sample(range(2, 8), 3)
    return [
        Trial(4, cases(wide, "equal", *(((n, n, n), (n, n)),) * 4)),
        Trial(1, cases(small, "equal", ((n, n, n, n),))),
        Trial(3, cases(small, "uneven", ((a, b), (c,)), ((c, 1, a), (a, 0)), ((0,), (b, b, 1)))),
        Trial(2, cases(small, "added", *(((a, a),),) * 2, has_before=True)),
        Trial(2, [Breaking(seed, small, (((a,) * 3,),) * 2, "left", each) for each in _WRAPPERS]),
        Trial(
            4,
            cases(
                small,
                "subgroups",
                *(((a, b),), ((c,),), ((b, 1),), ((a, a, c),)),
                groups=groups,
            ),
        ),
    ]


def _judge_once(seen: Seen) -> Verdict:
    """The gradients, and a few numbers."""
    waiting = waits(seen)
    if waiting:
        return waiting
    for one in of_topic(seen, "equal"):
        if one.trial.world_size == 1:
            continue
        if one.trace is None:
            return blocked("judged once the ranks come back")
        for rank in range(one.trial.world_size):
            steps = [
                (number, case, step)
                for number, case in enumerate(one.trial.cases)
                if isinstance(case, Accumulating)
                for step in range(case.num_steps)
            ]
            marks = inside_marks(one.trace, rank, "step")
            for (number, case, step), events in zip(steps, marks, strict=False):
                sentence = travels_once(events, case.size_of_gradients, "the gradients")
                if sentence:
                    where = f"{one.trial.words(number)}, step {step + 1}, rank {rank}"
                    return lost(
                        f"{where}: {sentence} Nothing travels within no_sync, to which the "
                        "forward pass belongs too, that of the model and not of its `.module`; "
                        "and the wrapper averages by itself in the last backward pass."
                    )
    return ok("the gradients travel once in a step, and a few numbers")


def _judge_uneven(seen: Seen) -> Verdict:
    """What hangs because gradients travel more than once is told there."""
    if _judge_once(seen).status == "lost" and any(one.hung for one in of_topic(seen, "uneven")):
        return blocked(
            "judged once the gradients travel once: ranks have different numbers of microbatches "
            "here, and those of the last ones wait for ranks that have none left"
        )
    return _uneven(seen)


def _advise_on_uneven(one: Observation) -> str:
    if one.hung:
        return (
            "Here ranks have other numbers of microbatches, and one has none but one of no "
            "samples. Every rank has to take part in every all-reduce, whatever it has."
        )
    return ""


_uneven = judge_topic(
    "uneven",
    "right where ranks differ in samples and microbatches, and where one has no samples",
    _advise_on_uneven,
)


def _judge_left(seen: Seen) -> Verdict:
    """Whoever never enters no_sync earns nothing for leaving it."""
    if _judge_once(seen).status != "ok":
        return blocked("judged once the gradients travel once")
    return _left(seen)


_left = judge_topic("left", "no_sync is left by an error too", lambda one: "")


def _advise_on_groups(one: Observation) -> str:
    return (
        "Groups of the wrappers: `process_group` of PyTorch's DDP, `group` of dtlab's "
        "DataParallel. Hand it to dist.all_reduce and dist.get_world_size."
    )


PART = Part(
    name="03/accumulate_over_ranks",
    level=2,
    title="Accumulate over ranks",
    minutes=30,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "equal",
                2,
                judge_equal("right on 1 and 4 ranks where all microbatches are equal"),
            ),
            Rule("uneven", 3, _judge_uneven),
            Rule("once", 2, _judge_once),
            Rule(
                "added",
                1,
                judge_topic("added", "added to what is in .grad already", lambda one: ""),
            ),
            Rule("graphs", 1, judge_graphs("the graph of one microbatch at a time")),
            Rule("left", 1, _judge_left),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups",
                    "right where the model averages over some of the ranks",
                    _advise_on_groups,
                    "uneven",
                ),
            ),
            Rule("loss", 1, judge_losses("returns the mean loss over the samples of all ranks")),
        ),
        compiles=True,
    ),
    reference="dtlab.training.accumulation.accumulate",
)
