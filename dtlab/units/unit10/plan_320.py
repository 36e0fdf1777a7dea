"""10/plan_320: a plan for a model with 320 GB of training state, on three clusters.

The learner searches a small space with `evaluate`. A plan is judged by the planner too: it must be
legal, fit in memory, and take at most 5 % longer than the best plan that `search` finds among all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Final, get_args

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import plain
from dtlab.predict import LINKS, Cluster, Link
from dtlab.predict.plan import Estimate, Plan, Schedule, Transformer, evaluate, search
from dtlab.predict.transformer import Recompute

__all__ = ["KEYS", "PART", "Setting", "draw_settings"]

KEYS: Final = tuple(field.name for field in fields(Plan))
# Ratios to the best step time: the largest that earns points; of the best plan in the small space,
# at most; of every plan with a typical mistake, more than this.
_NEAR, _CLOSE, _APART = 1.05, 1.01, 1.06

# The settings ------------------------------------------------------------------------------------
#
#     story   best plan             strategies that are more than 6 % slower, or do not fit
#     node    ZeRO-3 on 8 ranks     only pipeline; tensor 8; no ZeRO
#     slow    a pipeline, ZeRO-1    no pipeline; ZeRO-3; ZeRO-2; tensor 8
#     few     tensor 2 or 4, and    no sequence parallelism; microbatches of 1; tensor 8; no tensor
#             sequence parallelism
#
# In each of them the small space holds a plan within 1 % of the best of all plans.


@dataclass(frozen=True)
class Setting:
    """A model of about 20 B parameters, nodes of eight GPUs, a batch, and the memory per GPU.

    `story` names the constraint that determines the best plan: one node, a slow network between
    nodes, or few tokens.
    """

    story: str
    layers: int
    hidden: int
    heads: int
    nodes: int
    network: float  # bytes/s between nodes, one-way per GPU
    batch: int
    memory: float

    @property
    def model(self) -> Transformer:
        """The model: GPT-3's architecture, 2,048 tokens."""
        return Transformer(self.layers, self.hidden, self.heads, 50304, 2048)

    @property
    def cluster(self) -> Cluster:
        """The cluster: H100 GPUs, with NVLink inside a node."""
        return Cluster(self.nodes, 8, LINKS["NVLink 4"], Link(10e-6, self.network))

    @cached_property
    def best(self) -> Estimate:
        """The fastest of all plans that fit."""
        return search(self.model, self.cluster, self.batch, memory=self.memory).best(1)[0]

    def evaluate(self, plan: Plan) -> Estimate:
        """The memory and the step time of a plan in this setting."""
        return evaluate(self.model, self.cluster, self.batch, plan, memory=self.memory)

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return (
            f"{self.layers} layers on {nodes}, {self.network / 1e9:g} GB/s between nodes, "
            f"batch {self.batch}, {self.memory / 1e9:g} GB per GPU"
        )


def small_space(setting: Setting) -> Iterator[Plan]:
    """All plans without context parallelism and recomputation, under 1F1B."""
    gpus = setting.cluster.size
    for tensor in _divisors(gpus):
        for pipeline in _divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            for micro in _divisors(setting.batch // data) if setting.batch % data == 0 else ():
                for zero in range(4):
                    for shared in {False, tensor > 1}:
                        yield Plan(
                            tensor, 1, pipeline, data, zero, micro, sequence_parallel=shared
                        )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


_SLOWER: Final[Mapping[str, tuple[Callable[[Plan], bool], ...]]] = {
    "node": (
        lambda plan: plan.data == 1 and plan.tensor == 1,
        lambda plan: plan.tensor == 8,
        lambda plan: plan.zero == 0,
    ),
    "slow": (
        lambda plan: plan.pipeline == 1,
        lambda plan: plan.zero >= 2,
        lambda plan: plan.tensor == 8,
    ),
    "few": (
        lambda plan: not plan.sequence_parallel,
        lambda plan: plan.microbatch == 1,
        lambda plan: plan.tensor == 8,
        lambda plan: plan.tensor == 1,
    ),
}
_DRAWN: Final[Mapping[str, tuple[Sequence[Any], ...]]] = {  # layers and so on, as in `Setting`
    "node": (
        [(44, 6144, 48), (32, 7168, 56), (62, 5120, 40), (28, 7680, 64)],
        [1], [25e9, 50e9], [64, 96, 128, 256], [68e9, 70e9, 72e9],
    ),
    "slow": (
        [(62, 5120, 40), (56, 5376, 56)],
        [2, 3], [6.25e9, 12.5e9], [768, 1152, 1536], [64e9, 68e9, 72e9],
    ),
    "few": (
        [(44, 6144, 48), (62, 5120, 40), (28, 7680, 64)],
        [3, 4, 6, 8], [25e9, 50e9], [48, 96, 144], [64e9, 66e9, 68e9],
    ),
}  # fmt: skip


def draw_settings(draw: random.Random) -> list[Setting]:
    """One setting for each story."""
    return [_drawn(draw, story) for story in _DRAWN]


def _drawn(draw: random.Random, story: str) -> Setting:
    for _ in range(300):
        shape, *rest = (draw.choice(each) for each in _DRAWN[story])
        setting = Setting(story, *shape, *rest)
        if setting.batch % setting.nodes == 0 and _is_clear(setting):
            return setting
    raise AssertionError(f"no draw makes the strategies of {story!r} differ")


def _is_clear(setting: Setting) -> bool:
    """Whether the small space has a plan close to the best, and no plan near it is a mistake.

    `_SLOWER` defines the typical mistakes of each story, as tests on plans.
    """
    found = [one for one in map(setting.evaluate, small_space(setting)) if not one.reason]
    limit = setting.best.step_seconds
    if not any(one.step_seconds <= _CLOSE * limit for one in found):
        return False
    near = [one.plan for one in found if one.step_seconds <= _APART * limit]
    return not any(test(plan) for test in _SLOWER[setting.story] for plan in near)


# What is judged ----------------------------------------------------------------------------------

_ADVICE: Final = {
    "tensor parallelism": "How many tensor ranks does a layer need, and do they share a node?",
    "data parallelism": "What do the data ranks send for every microbatch at this ZeRO stage, and "
    "what hides it?",
    "pipeline bubble": "How many microbatches fill how many stages?",
    "recomputation": "Is there a plan that fits without it?",
    "context parallelism": "Are the sequences so long that they must be cut?",
    "pipeline messages": "How many boundaries are there, and on which links?",
    "uneven stages": "Do the stages divide the layers, and which one has the output head?",
}


@dataclass(frozen=True)
class Planned(Faulty):
    """A call of `plan_320(model, cluster, batch, memory)` for one setting."""

    alone = True
    topic = "legal"
    finished: ClassVar[tuple[str, ...]] = ("dtlab.predict.plan",)
    allowed: ClassVar[tuple[str, ...]] = (
        "Plan", "evaluate", "Estimate", "Problem", "Transformer",
    )  # fmt: skip

    setting: Setting

    def __str__(self) -> str:
        return str(self.setting)

    def shows(self, criterion: str) -> bool:
        return criterion in ("legal", "memory", self.setting.story)

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return astuple(self.setting)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        from dtlab.grading.checking.finished import finished_calls

        setting = Setting(*given)
        arguments = setting.model, setting.cluster, setting.batch, setting.memory
        options: dict[str, Any] = {"refuse": True, "allowed": Planned.allowed}
        with finished_calls(*Planned.finished, **options) as finished:
            found = fn(*arguments)
        found = asdict(found) if isinstance(found, Plan) else found
        noted: dict[str, Any] = {"finished": sorted(finished)}
        if not isinstance(found, Mapping):
            return {**noted, "odd": f"a {type(found).__name__}, not a dict"}
        wrong = sorted(set(map(str, found)) ^ set(KEYS))
        if wrong:
            return {**noted, "odd": f"a dict whose keys differ in {', '.join(wrong)[:80]}"}
        values = {key: plain(found[key]) for key in KEYS}
        kinds = int | str
        return {
            **noted,
            "plan": {k: v if isinstance(v, kinds) else str(v)[:40] for k, v in values.items()},
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        odd = results[0].get("odd")
        values = results[0].get("plan")
        problem = f"plan_320 returns {odd}." if odd else _misfit(values)
        if problem:
            yield "legal", problem
            return
        found = self.setting.evaluate(Plan(**values))
        if not found.seconds:
            yield "legal", f"{found.plan}: this plan cannot run: {found.reason}."
            return
        if found.reason:
            most = max(found.memory, key=lambda part: found.memory[part])
            yield "memory", f"{found.plan}: {found.reason}. The largest part is {most}."
        yield from self._slow(found)

    def _slow(self, found: Estimate) -> Iterator[Fault]:
        """Yields a fault that names the largest extra cost if the best plan is over 5 % faster."""
        best = self.setting.best
        times = found.step_seconds / best.step_seconds
        if times > _NEAR:
            cost = max(
                found.seconds, key=lambda name: found.seconds[name] - best.seconds.get(name, 0)
            )
            shares = [one.seconds[cost] / one.step_seconds for one in (found, best)]
            yield (
                self.setting.story,
                f"{found.plan}: its step takes {times:.2f} times as long as that of the best "
                f"plan. What differs most is {cost}: {shares[0]:.0%} of your step, and "
                f"{shares[1]:.0%} of the best one. {_ADVICE.get(cost, '')}".rstrip(),
            )


def _misfit(values: Mapping[str, Any]) -> str:
    """Why these values are not a plan; empty if they are."""
    for name in ("tensor", "context", "pipeline", "data", "microbatch", "chunks"):
        value = values[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return f"{name!r} is {value!r}; it must be a whole number of 1 or more."
    choices: dict[str, Sequence[Any]] = {
        "zero": range(4), "schedule": get_args(Schedule), "recompute": get_args(Recompute),
        "sequence_parallel": (False, True),
    }  # fmt: skip
    for name, allowed in choices.items():
        if values[name] not in allowed:
            words = ", ".join(map(str, allowed))
            return f"{name!r} is {values[name]!r}; it must be one of {words}."
    return ""


def _trials(seed: int) -> list[Trial]:
    """A single trial: one rank calls the function for all three settings."""
    cases = [Planned(setting) for setting in draw_settings(random.Random(seed))]
    return [Trial(1, cases, limit=20.0)]


PART = Part(
    name="10/plan_320",
    level=3,
    title="A model with 320 GB of training state",
    minutes=30,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("legal", 2, "all three plans can run"),
            rule("memory", 2, "no GPU holds more than fits", "legal"),
            rule("node", 2, "one node: within 5 % of the best plan", "legal"),
            rule("slow", 3, "slow network: within 5 % of the best plan", "legal"),
            rule("few", 3, "few tokens: within 5 % of the best plan", "legal"),
        ),
    ),
)
