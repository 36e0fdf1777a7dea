"""02/average_by_hooks: gradients are averaged as they come, and all ranks begin the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit02.average_gradients import (
    Seen,
    advise_on_groups,
    judge_all_reduces,
    judge_gradients,
    judge_topic,
)
from dtlab.units.unit02.training import Arguments, Training, begin, train

if TYPE_CHECKING:
    from torch import Tensor

_SAME_START = "all ranks begin the same"


class FromTheStart(Training):
    """`fn(module)` is called once, before the first step."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        module, group = begin(given)
        return train(module, given, lambda: fn(module, **group))


@dataclass(frozen=True)
class Beginning(Training):
    """What ranks have after `fn(module)`, where each one began with something else."""

    topic: str = "start"

    def given(self, rank: int, world_size: int) -> Arguments:
        return Training.given(self.on(seed=self.seed + 1 + rank), rank, world_size)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        from dtlab.grading.checking.modules import tensors_of

        module, group = begin(given)
        fn(module, **group)
        return {name: tensor.detach() for name, tensor in tensors_of(module).items()}

    def opened(self, result: Any) -> Any:
        return dict(result)

    def mistake(self, results: Sequence[Any]) -> str:
        """The first tensor that is not that of the first member of its group: see `Case`."""
        from dtlab.grading.checking.modules import tensors_of

        states = [self.on(seed=self.seed + 1 + rank).module() for rank in range(len(results))]
        every = [tensors_of(state) for state in states]
        for rank, got in enumerate(results):
            first = self.members(rank, len(results))[0]
            for name, wanted in every[first].items():
                if not got[name].equal(wanted):
                    whose = self._whose(got[name], every, name, rank)
                    return f"rank {rank}, {name}: {whose}, not what rank {first} began with."
        return ""

    def _whose(
        self, got: Tensor, every: Sequence[dict[str, Tensor]], name: str, rank: int
    ) -> str:
        for other in (rank, *range(len(every))):
            if got.shape == every[other][name].shape and got.equal(every[other][name]):
                return f"what {'this rank' if other == rank else f'rank {other}'} began with"
        return "something else"


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks; then frozen layers, different beginnings, and groups."""
    draw = random.Random(seed)
    nets = draw_nets(draw)
    trials = [Trial(ranks, [FromTheStart(seed, net) for net in nets]) for ranks in (4, 1, 2, 3)]
    frozen = Net("frozen", (*nets[0].sizes, 5), "a frozen layer")
    head_first = Net("head first", nets[0].sizes, "three layers, the last one defined first")
    buffered = Net("buffered", nets[0].sizes, "a frozen layer and buffers")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *trials,
        Trial(2, [FromTheStart(seed, head_first)]),
        Trial(3, [FromTheStart(seed, frozen, topic="frozen")]),
        Trial(3, [Beginning(seed, buffered)]),
        Trial(
            5,
            [
                FromTheStart(seed, nets[0], topic="subgroups", groups=groups),
                Beginning(seed, buffered, topic="subgroups", groups=groups),
            ],
        ),
    ]


def _advise_on_order(seen: Seen) -> str:
    """Where only the model whose layers are defined in another order goes wrong."""
    wrong = [case for one in seen if one.mistakes for case in one.trial.cases]
    if not all(isinstance(case, Training) and case.net.kind == "head first" for case in wrong):
        return ""
    return (
        "Right where layers are defined in the order in which they are used. No hook can tell "
        "which other gradients are there: each parameter's own hook averages its gradient."
    )


def _advise_on_frozen(one: Observation) -> str:
    return "A frozen parameter gets no gradient, so there is nothing to hook: ask requires_grad."


def _advise_on_start(one: Observation) -> str:
    if one.failure is not None and "register a hook" in one.failure.message:
        return _advise_on_frozen(one)
    if ", count: " in one.mistakes[0]:
        return (
            "`state_dict` leaves out buffers that are not saved, those with persistent=False: "
            "`buffers()` has them all."
        )
    return (
        "Before the first step every parameter, frozen ones too, and every buffer has to be the "
        "first rank's: dist.broadcast writes into the tensor of all others."
    )


PART = Part(
    name="02/average_by_hooks",
    level=2,
    title="Average by hooks",
    minutes=15,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "gradients",
                2,
                judge_gradients(
                    "after backward every gradient is the mean, in every step", _advise_on_order
                ),
            ),
            Rule(
                "start",
                2,
                judge_topic("start", _SAME_START, _advise_on_start, whatever_the_gradients=True),
            ),
            Rule(
                "frozen",
                1,
                judge_topic(
                    "frozen",
                    "a model with frozen parameters trains too, and these get no gradient",
                    _advise_on_frozen,
                ),
            ),
            Rule("all_reduces", 1, judge_all_reduces),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups",
                    "right on groups of some of the ranks too",
                    advise_on_groups,
                    after=("start", _SAME_START),
                ),
            ),
        ),
    ),
    reference="dtlab.parallel.data.data_parallel.NaiveDataParallel",
)
