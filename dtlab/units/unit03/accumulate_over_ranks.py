"""03/accumulate_over_ranks: accumulate over ranks with unequal samples; all-reduce once a step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import close
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, Seen, of_topic, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import draw_groups
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN
from dtlab.checks.parts import Part
from dtlab.checks.words import amount, spelled
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

_FEW = 1024  # bytes of "a few numbers" that may be sent as well


def travels_once(events: Sequence[Event], size: int, what: str) -> str:
    """A message unless `what`, of `size` bytes, is all-reduced exactly once; empty otherwise.

    It may be divided among several all-reduces. A few more numbers may be sent.
    """
    sent: Counter[str] = Counter()
    for event in events:
        if event.kind == "comm":
            sent[event.name] += event.bytes
    for name, count in sent.items():
        if name != "all_reduce" and count > _FEW:
            return (
                f"dist.{name} sends {amount(count)}. Send only {what} in all-reduces, and a few "
                "numbers."
            )
    reduced = f"the all-reduces have {amount(sent['all_reduce'])}, and {what} {amount(size)}"
    if sent["all_reduce"] < size:
        return f"{reduced}: not all of it was sent."
    if sum(sent.values()) <= size + _FEW:
        return ""
    times = round(sent["all_reduce"] / size)
    often = "twice" if times == 2 else f"{spelled(times)} times"
    return (f"you send {what} {often}: " if times > 1 else "") + f"{reduced}."


def _not_reduced_once(seen: Seen) -> str:
    """A message unless each step all-reduces the gradients exactly once; empty otherwise."""
    for where, size, events in in_each_step(seen, "equal"):
        wrong = travels_once(events, size, "the gradients")
        if wrong:
            return (
                f"{where}: {wrong} Inside no_sync nothing is sent. The forward pass must be "
                "inside it too, and must call the wrapper, not its `.module`. The wrapper "
                "averages by itself in the last backward pass."
            )
    return ""


@dataclass(frozen=True)
class Breaking(Accumulating):
    """A microbatch raises an error; then gradients must be averaged in an ordinary backward."""

    topic: str = "left"

    @property
    def reduced(self) -> list[int]:
        """No bytes, because this case does not judge what is sent."""
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

        caught = None  # keeps the learner's stack frames alive, as a notebook does
        with finished_calls(*FINISHED, refuse=True):
            try:
                fn(model, breaking, given.steps[0])
            except Exception as error:  # noqa: BLE001  a learner may chain another exception
                caught = error
        module.zero_grad()
        inputs, targets = given.steps[0][0]
        loss_sum(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        return {"raised": caught is not None, "gradients": gradients_of(module)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        if not all(result["raised"] for result in results):
            yield "left", "loss_sum raised an error, and your function hid it: let it propagate."
            return
        (shares,) = next(iter(self.shares.values()))
        wanted = torch.stack([sums[0] for sums in shares.sums.values()]).mean(0)
        for rank, result in enumerate(results):
            got = torch.cat([part.flatten() for part in result["gradients"] if part is not None])
            if not close(got, wanted):
                yield (
                    "left",
                    f"rank {rank}: after an error in a microbatch the model is still in no_sync, "
                    "and no longer averages. Use `with`, which ends no_sync after an error too.",
                )
                return


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Trials with equal ranks, with uneven ranks, a filled `.grad`, an error, and groups."""
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
    "a step sends the gradients once, and a few numbers",
    also=_not_reduced_once,
    after="equal",
)


def _hangs(seen: Seen) -> str:
    """Until when "uneven" waits, if its trial hangs since gradients are sent more than once."""
    if _ONCE.judge(seen).status == "lost" and any(run.hung for run in of_topic(seen, "uneven")):
        return (
            "the gradients are sent only once: ranks have different numbers of microbatches here, "
            "and the ranks with more of them wait for the other ranks"
        )
    return ""


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
                "right on 1 and 4 ranks if all microbatches are equally large",
                lost_by=("equal", FOREIGN),
            ),
            rule(
                "uneven",
                3,
                "right if ranks have unequal numbers of samples and microbatches, and one has no "
                "samples",
                waits=_hangs,
                after="equal",
            ),
            _ONCE,
            rule("added", 1, "adds to the old content of .grad", after="equal"),
            rule("graphs", 1, "holds the graph of only one microbatch at a time", after="equal"),
            rule("left", 1, "no_sync ends after an error too", after="once"),
            rule(
                "subgroups",
                1,
                "right if the model averages over some of the ranks",
                after="uneven",
            ),
            rule("loss", 1, "returns the mean loss over the samples of all ranks", after="uneven"),
        ),
        compiles=True,
    ),
    reference="dtlab.simple.accumulate",
)
