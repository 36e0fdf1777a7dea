"""10/plan_320: plan the training of a model with 320 GB of training state, on three clusters.

The learner searches a small space with `evaluate`. The check uses the planner too: a plan must be
legal, fit in memory, and take at most 5 % longer than the best plan that `search` finds among all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Final

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import entries
from dtlab.predict import LINKS, Cluster, Link
from dtlab.predict.plan import Estimate, Plan, Search, Transformer, evaluate, search

__all__ = ["KEYS", "PART", "Setting", "draw_settings"]

KEYS: Final = tuple(field.name for field in fields(Plan))
# Ratios to the best step time: the largest that earns points; the largest of the best plan in the
# small space; a limit that every plan with a typical mistake exceeds.
_NEAR, _CLOSE, _APART = 1.05, 1.025, 1.06
_MOST: Final = 4  # reasons against a plan, and faults in a message

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

# The settings ------------------------------------------------------------------------------------
#
#     story   best plan             strategies that are more than 6 % slower, or do not fit
#     node    ZeRO-3 on 8 ranks     only pipeline; tensor 8; no ZeRO
#     slow    a pipeline, ZeRO-1    no pipeline; ZeRO-3; ZeRO-2; tensor 8
#     few     tensor 2 or 4, and    no sequence parallelism; microbatches of 1; tensor 8; no tensor
#             sequence parallelism
#
# In each of them the small space holds a plan within 2.5 % of the best of all plans.


@dataclass(frozen=True)
class Setting(Faulty):
    """A model of about 20 B parameters, nodes of eight GPUs, a batch, and the memory per GPU.

    `story` names the constraint that determines the best plan: one node, a slow network between
    nodes, or few tokens.
    """

    alone = True
    topic = "legal"
    finished: ClassVar[tuple[str, ...]] = ("dtlab.predict.plan.all_plans",)

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

    @property
    def best(self) -> Estimate:
        """The fastest of all plans that fit."""
        return _all_plans(self).best(1)[0]

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return (
            f"{self.layers} layers on {nodes}, {self.network / 1e9:g} GB/s between nodes, "
            f"batch {self.batch}, {self.memory / 1e9:g} GB per GPU"
        )

    def shows(self, criterion: str) -> bool:
        return criterion in ("legal", "memory", self.story)

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return astuple(self)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        setting = Setting(*given)
        options: dict[str, Any] = {"refuse": True, "allowed": Setting.allowed}
        with finished_calls(*Setting.finished, **options) as finished:
            plan = fn(setting.model, setting.cluster, setting.batch, setting.memory)
        plan = asdict(plan) if isinstance(plan, Plan) else plan
        return {"plan": entries(plan, KEYS), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        values = results[0]["plan"]
        if "odd" in values:
            keys = ", ".join(KEYS)
            yield "legal", f"plan_320 returns {values['odd']}. Return a dict with {keys}."
            return
        estimate = evaluate(
            self.model, self.cluster, self.batch, Plan(**values), memory=self.memory
        )
        if not estimate.seconds:
            yield "legal", self._illegal(estimate)
            return
        if estimate.reason:
            most = max(estimate.memory, key=lambda part: estimate.memory[part])
            yield "memory", f"{estimate.plan}: {estimate.reason}. The largest part is {most}."
        yield from self._slow(estimate)

    def _illegal(self, estimate: Estimate) -> str:
        """Says why the plan cannot run, with at most four reasons."""
        plan, reasons = estimate.plan, estimate.reasons  # one with odd values has no words
        words = "plan_320 does not return a plan" if plan.odd else f"{plan}: this plan cannot run"
        if len(reasons) > 1:
            words += f", for {len(reasons)} reasons"
        if len(reasons) > _MOST:
            words += f", of which these are the first {_MOST}"
        return f"{words}: {'; '.join(reasons[:_MOST])}."

    def _slow(self, plan: Estimate) -> Iterator[Fault]:
        """Yields a fault that names the largest extra cost if a step takes over 5 % longer."""
        best = self.best
        times = plan.step_seconds / best.step_seconds
        if times > _NEAR:
            cost = max(
                plan.seconds, key=lambda name: plan.seconds[name] - best.seconds.get(name, 0)
            )
            shares = [each.seconds[cost] / each.step_seconds for each in (plan, best)]
            yield (
                self.story,
                f"{plan.plan}: its step takes {times:.2f} times as long as that of the best "
                f"plan. The largest difference is {cost}: {shares[0]:.0%} of your step, and "
                f"{shares[1]:.0%} of the best one. {_ADVICE.get(cost, '')}".rstrip(),
            )


@lru_cache(maxsize=16)  # not stored in the setting, which a learner's function may reach
def _all_plans(setting: Setting) -> Search:
    return search(setting.model, setting.cluster, setting.batch, memory=setting.memory)


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
    """Whether the small space has a plan close to the best, and no mistaken plan is near it.

    `_SLOWER` defines the typical mistakes of each story, as tests on plans.
    """
    near = [
        each
        for each in _all_plans(setting).within(_APART)
        if (each.plan.context, each.plan.schedule, each.plan.recompute) == (1, "1f1b", "none")
    ]
    return (
        bool(near)
        and near[0].step_seconds <= _CLOSE * setting.best.step_seconds
        and not any(test(each.plan) for test in _SLOWER[setting.story] for each in near)
    )


def _trials(seed: int) -> list[Trial]:
    """A single trial: one rank calls the function for all three settings."""
    return [Trial(1, draw_settings(random.Random(seed)), limit=20.0)]


PART = Part(
    name="10/plan_320",
    level=3,
    title="A model with 320 GB of training state",
    minutes=30,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("legal", 2, "all three plans can run", most=_MOST,
                 then=("memory", "node", "slow", "few")),
            rule("memory", 2, "no GPU runs out of memory", "legal", most=_MOST),
            rule("node", 2, "one node: within 5 % of the best plan", "legal"),
            rule("slow", 3, "slow network: within 5 % of the best plan", "legal"),
            rule("few", 3, "few tokens: within 5 % of the best plan", "legal"),
        ),
    ),
)  # fmt: skip
