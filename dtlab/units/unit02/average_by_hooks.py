"""02/average_by_hooks: average gradients in backward by hooks, and start with equal models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, Seen, rule
from dtlab.checks.functions.groups import draw_groups, members_of
from dtlab.checks.functions.nets import Net, draw_nets
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN
from dtlab.checks.parts import Part
from dtlab.units.unit02.average_gradients import ONE_EACH, Afterwards
from dtlab.units.unit02.training import LOST_BY, Arguments, Training, begin, train

_FROZEN = "A frozen parameter gets no gradient, so it needs no hook: check requires_grad."


class FromTheStart(Afterwards):
    """Calls `fn(module)` once, before the first step.

    If that call fails, the check cannot judge the initial models of the ranks either.
    """

    also_shows: ClassVar = {"gradients": ("all_reduces", "start")}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        def start(*args: Any, **group: Any) -> Callable[[], Any]:
            fn(*args, **group)
            return lambda: None

        return train(given, start)


@dataclass(frozen=True)
class Beginning(Training):
    """Compares models after `fn(module)`; each rank begins with different parameters."""

    topic: str = "start"
    steps: int = 0

    def given(self, rank: int, world_size: int) -> Arguments:
        return Training.given(replace(self, seed=self.seed + 1 + rank), rank, world_size)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        from dtlab.checks.functions.modules import tensors_of

        module, group = begin(given)
        fn(module, **group)
        return {name: tensor.detach() for name, tensor in tensors_of(module).items()}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """Yields each tensor that differs from that of the first member of the rank's group."""
        from dtlab.checks.functions.modules import tensors_of

        ranks = range(len(results))
        initial = [tensors_of(self.net.module(self.seed + 1 + rank)) for rank in ranks]
        for rank, got in enumerate(results):
            first = members_of(self.groups, rank, len(results))[0]
            for name, wanted in initial[first].items():
                if same(got[name], wanted):
                    continue
                equal = [other for other in ranks if same(got[name], initial[other][name])]
                owner = f"rank {equal[0]}" if equal else "no rank"
                owner = "this rank" if rank in equal else owner
                text = f"this is {owner}'s initial value, and must be rank {first}'s."
                words = f"rank {rank}, {name}: {text}"
                yield self.topic, f"{words}\n{self.advice(words)}"

    def advice(self, trouble: str) -> str:
        if self.groups:
            return super().advice(trouble)
        if "register a hook" in trouble:
            return _FROZEN
        if ", count: " in trouble:
            return (
                "`state_dict` leaves out buffers with persistent=False, which are not saved. "
                "`buffers()` returns all of them."
            )
        return (
            "Before the first step every parameter (frozen ones too) and every buffer must equal "
            "the first rank's: dist.broadcast writes into the tensor of all other ranks."
        )


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks; then with frozen layers, different initial models, and groups."""
    draw = random.Random(seed)
    nets = draw_nets(draw)
    frozen = Net("frozen", (*nets[0].sizes, 5), "a frozen layer")
    head_first = Net("head first", nets[0].sizes, "three layers, the last one defined first")
    buffered = Net("buffered", nets[0].sizes, "a frozen layer and buffers")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *(Trial(ranks, [FromTheStart(seed, net) for net in nets]) for ranks in (4, 1, 2, 3)),
        Trial(2, [FromTheStart(seed, head_first)]),
        Trial(3, [FromTheStart(seed, frozen, "frozen", hint=_FROZEN)]),
        Trial(3, [Beginning(seed, buffered)]),
        Trial(
            5,
            [
                FromTheStart(seed, nets[0], "subgroups", groups=groups),
                Beginning(seed, buffered, "subgroups", groups=groups),
            ],
        ),
    ]


def _kinds(trial: Trial) -> list[str]:
    """The kinds of the models of a trial."""
    return [case.net.kind for case in trial.cases if isinstance(case, Training)]


def _advise_on_order(trials: Seen, words: str) -> str:
    """Advice if models fail that define their layers in another order than they use them.

    A hook that crashes only there uses another parameter than its own, without a gradient yet.
    """
    failed = [trial for trial in trials if trial.mistakes]
    other_order = [trial for trial in failed if "head first" in _kinds(trial.trial)]
    own = "Each parameter's hook averages that gradient alone."
    if failed and failed == other_order:
        return (
            "Right if layers are defined in the order in which they are used. Other gradients may "
            f"not be ready when a hook runs. {own}"
        )
    crashed = (trial.trouble for trial in other_order if trial.error)
    return next((f"And with {trouble}\n{own}" for trouble in crashed), "")


_BEFORE = "gradients", "start", FOREIGN

PART = Part(
    name="02/average_by_hooks",
    level=2,
    title="Average with hooks",
    minutes=15,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "gradients",
                2,
                "after backward every gradient is the mean, in every step",
                lost_by=LOST_BY,
                advice=_advise_on_order,
            ),
            rule("start", 2, "all ranks begin with equal models", FOREIGN, on="start"),
            rule(
                "frozen",
                1,
                "a model with frozen parameters trains too, and these get no gradient",
                "gradients",
                FOREIGN,
            ),
            ONE_EACH,
            rule("subgroups", 1, "right on groups of some of the ranks too", *_BEFORE),
        ),
    ),
    reference="dtlab.simple.average_by_hooks",
)
