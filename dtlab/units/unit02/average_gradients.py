"""02/average_gradients: average each gradient after backward, with one all-reduce for each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, right_on_some, rule
from dtlab.checks.functions.groups import draw_groups
from dtlab.checks.functions.nets import Net, draw_nets
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit02.training import LOST_BY, Arguments, Step, Training, amounts, train

__all__ = ["ONE_EACH", "PART", "Afterwards"]

_FROZEN = (
    "A parameter that is frozen, or that the model did not use, has no gradient: its `.grad` is "
    "None and must stay None."
)


class Afterwards(Training):
    """Calls `fn(module)` after backward, when every `.grad` is ready."""

    also_shows: ClassVar = {"gradients": ("all_reduces",)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        return train(given, lambda module, **group: lambda: fn(module, **group))

    def wrong_step(self, step: Step) -> Iterator[Fault]:
        """Yields a fault unless there is at most one all-reduce per gradient and nothing else."""
        if self.topic != "gradients" or step.run.trial.world_size == 1:
            return
        most, count = len(self.sizes), len(step.all_reduces)
        if step.others:
            message = f"the rank calls {step.others}. Each gradient takes one dist.all_reduce."
        elif count > most:
            message = (
                f"{counted(count, 'all-reduce')} for {counted(most, 'gradient')}. Look for a "
                f"loop that visits the same "
                "parameter twice, or for an all-reduce of a value that all ranks have anyway."
            )
        elif count == 0:
            message = "the rank calls no all-reduce. dist.all_reduce sums in place."
        elif step.sent() > sum(self.sizes):
            more, enough = amounts(step.sent(), sum(self.sizes))
            message = (
                f"the all-reduces carry {more}, and the gradients are {enough}. Pass each "
                "gradient as it is: in its own dtype, and without any other data."
            )
        else:
            return
        yield "all_reduces", message


ONE_EACH = rule(
    "all_reduces", 1, "one all-reduce for each gradient, and nothing else", FOREIGN, finish=True
)


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks; then with parameters that have no gradient, and groups."""
    draw = random.Random(seed)
    nets = draw_nets(draw)
    shifted = Net("shifted", nets[0].sizes, "three layers and a parameter outside them")
    skipping = Net("skipping", (*nets[0].sizes, 5), "a frozen and an unused layer")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *(Trial(ranks, [Afterwards(seed, net) for net in nets]) for ranks in (4, 1, 2, 3)),
        Trial(2, [Afterwards(seed, shifted)]),
        Trial(3, [Afterwards(seed, skipping, "frozen", hint=_FROZEN)]),
        Trial(5, [Afterwards(seed, nets[0], "subgroups", groups=groups)]),
    ]


_BEFORE = "gradients", FOREIGN

PART = Part(
    name="02/average_gradients",
    level=2,
    title="Average the gradients",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "gradients",
                2,
                "every gradient is the mean, on 1 to 4 ranks, in every step",
                lost_by=LOST_BY,
                advice=lambda trials, _: right_on_some(trials),
            ),
            rule("frozen", 1, "parameters without a gradient still have none", *_BEFORE),
            ONE_EACH,
            rule("subgroups", 1, "right on groups of some of the ranks too", *_BEFORE),
        ),
    ),
)
