"""00/cure: the cheapest plan by which a model fits, judged by real iterations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Case, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit00.settings import PLAN, draw_setting

__all__ = ["PART", "Curing", "Plan", "cost", "plans_for"]

Plan = dict[str, Any]

_LIMIT = 20.0  # seconds for a launch: one takes half of one
_TOPICS = ("clear", "halves", "more", "checkpoint", "both", "never", "step", "thirds", "odd")

# Plans, and what they cost --------------------------------------------------------------------


def plans_for(setting: Mapping[str, Any]) -> list[Plan]:
    """All plans, the cheapest first: clearing costs nothing, checkpoints cost most."""
    parts = [n for n in range(1, setting["samples"] + 1) if setting["samples"] % n == 0]
    found = [
        {"clear": clear, "microbatches": n, "checkpoint": again}
        for again in (False, True)
        for n in parts
        for clear in ("before backward", "after step")
    ]
    return sorted(found, key=cost)


def cost(plan: Mapping[str, Any]) -> tuple[bool, int]:
    """What is compared: checkpoints or none, then the number of microbatches."""
    return bool(plan["checkpoint"]), int(plan["microbatches"])


# Models -----------------------------------------------------------------------------------------


def _limited(draw: random.Random, topic: str) -> Plan:
    """A setting with a limit, so that the cheapest plan is the one of its topic."""
    from dtlab.units.unit00.measured import peaks

    kind = {"clear": "late", "step": "weights"}.get(topic, "states")
    setting = draw_setting(draw, kind) | {"samples": 1, "clear": "before backward"}
    if topic in ("halves", "more", "both", "never"):
        setting["samples"] = 2 if topic == "both" else 4
        setting["batch"] = 32 * draw.randint(4, 7)
    if topic in ("thirds", "odd"):
        setting |= {"samples": 6 if topic == "thirds" else 3, "batch": 48 * draw.randint(4, 6)}
    if topic in ("checkpoint", "both"):
        width = 16 * draw.randint(3, 4)
        setting["batch"] = 32 * draw.randint(7, 10)
        setting["widths"] = [width] * 5 + [16]

    def most(**plan: Any) -> int:
        return max(peaks(setting | PLAN | plan).values())

    limits: dict[str, Callable[[], tuple[int, ...]]] = {
        "clear": lambda: (most(),) * 2,  # to the byte
        "halves": lambda: (most(microbatches=2), most()),
        "more": lambda: (most(microbatches=4), most(microbatches=2)),
        "thirds": lambda: (most(microbatches=3), most(microbatches=2)),
        "odd": lambda: (most(microbatches=3), most()),
        "checkpoint": lambda: (most(checkpoint=True), most()),
        "both": lambda: (most(checkpoint=True, microbatches=2), _both_above(most)),
        "never": lambda: (round(0.9 * (one := most(checkpoint=True, microbatches=4))), one),
        "step": lambda: (round(0.9 * (one := most(checkpoint=True))), one),
    }
    least, above = limits[topic]()
    return setting | {"limit": (least + above) // 2}


def _both_above(most: Callable[..., int]) -> int:
    """What the next cheaper plans take, with and without checkpoints."""
    return min(most(checkpoint=True), most(microbatches=2))


@dataclass(frozen=True)
class Curing(Case):
    """`cure(setting)`, whose limit is in the setting; `topic` says what is needed."""

    alone = True

    setting: Plan = field(hash=False)
    topic: str

    def __str__(self) -> str:
        return (
            f"widths {self.setting['widths']}, {self.setting['batch']} rows in "
            f"{self.setting['samples']} samples, {self.setting['optimizer']}, "
            f"limit {self.setting['limit']:,} bytes"
        )

    def given(self, rank: int, world_size: int) -> Any:
        return self.setting

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        found = fn({**given, "widths": list(given["widths"])})
        if found is None:
            return None
        if not isinstance(found, dict):
            return f"returns a {type(found).__name__}"
        return [[str(key), found[key]] for key in found if key in PLAN]

    def opened(self, result: Any) -> Plan | str | None:
        if result is None or isinstance(result, str):
            return result[:60] if result else None
        plan = {key: self.setting[key] for key in PLAN} | dict(result)
        plan["checkpoint"], plan["microbatches"] = bool(plan["checkpoint"]), plan["microbatches"]
        if plan not in plans_for(self.setting):
            said = ", ".join(f"{key}: {plan[key]!r}" for key in PLAN)[:120]
            return f"returns {{{said}}}, and that is no plan for {self.setting['samples']} samples"
        return plan

    def mistake(self, results: Sequence[Any]) -> str:
        if isinstance(results[0], str):
            return f"cure {results[0]}. Return a plan as a dict, or None."
        return ""


@dataclass(frozen=True)
class Carried(Case):
    """Two iterations by a plan, on a rank of ours."""

    alone = True

    setting: Plan = field(hash=False)

    def __str__(self) -> str:
        return "two iterations"

    def given(self, rank: int, world_size: int) -> Any:
        return self.setting

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        return fn(given)

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


def _measure(setting: Plan) -> dict[str, int]:
    """Runs on a rank of ours."""
    from dtlab.units.unit00.measured import peaks

    return peaks(setting)


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    cases = [Curing(_limited(draw, topic), topic) for topic in _TOPICS]
    return [Trial(1, cases, limit=_LIMIT)]


def _iterations(seen: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """Real iterations by each plan."""
    if seen[0].mistakes:
        return []
    cases = [Carried(case.setting | plan) for _, case, plan in _plans(seen) if plan is not None]
    return [(Trial(1, cases, limit=_LIMIT), _measure)] if cases else []


def _plans(seen: Seen) -> Iterator[tuple[str, Curing, Plan | None]]:
    one = seen[0]
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
        assert isinstance(case, Curing)
        yield one.trial.words(number), case, results[0]


# Judges -----------------------------------------------------------------------------------------


def _judge_fits(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    trouble = next((one.trouble for one in seen[1:] if one.error is not None), "")
    if trouble:
        return blocked(f"{trouble}\nThat is not the plan's doing: run the check again.")
    measured = _sizes(seen)
    for words, case, plan in _plans(seen):
        sizes = next(measured) if plan is not None else None
        if case.topic in ("never", "step"):
            continue
        if plan is None or sizes is None:
            return lost(f"{words}: returns None, and there is a plan that fits.")
        phase = max(sizes, key=lambda name: sizes[name])
        if sizes[phase] > case.setting["limit"]:
            return lost(
                f"{words}: by {_said(plan)} a real run has {sizes[phase]:,} bytes at its peak, "
                f"in phase {phase!r}. What is there in that phase, and which cure is for it?"
            )
    return ok("real iterations by each plan stay within the limit")


def _sizes(seen: Seen) -> Iterator[Mapping[str, int]]:
    """Bytes of each plan in order; measured here where no iterations of ours were run."""
    if len(seen) > 1:
        return iter([results[0] for one in seen[1:] for results in one.results])
    return (_measure(case.setting | plan) for _, case, plan in _plans(seen) if plan is not None)


def _said(plan: Plan) -> str:
    return "{" + ", ".join(f'"{key}": {plan[key]!r}' for key in PLAN) + "}"


_CHEAPEST: Mapping[str, tuple[bool, int]] = {
    "clear": (False, 1),
    "halves": (False, 2),
    "more": (False, 4),
    "thirds": (False, 3),
    "odd": (False, 3),
    "checkpoint": (True, 1),
    "both": (True, 2),
}


def _judge_cheapest(seen: Seen) -> Verdict:
    if _judge_fits(seen).status != "ok":
        return blocked("judged once the plans fit")
    for words, case, plan in _plans(seen):
        if plan is not None and case.topic in _CHEAPEST and cost(plan) > _CHEAPEST[case.topic]:
            return lost(
                f"{words}: {_said(plan)} fits, and a cheaper plan does too. Clearing costs "
                "nothing, microbatches little, checkpoints most."
            )
    return ok("no cheaper plan fits")


def _judge_never(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        return blocked("judged once cure returns a plan or None everywhere")
    for words, case, plan in _plans(seen):
        if case.topic in ("never", "step") and plan is not None:
            return lost(
                f"{words}: with every cure together it does not fit, and cure returns "
                f"{_said(plan)}. Return None: what is too large is not what these cures shrink."
            )
    return ok("None where states and weights alone are too much: there it takes more cards")


PART = Part(
    name="00/cure",
    level=3,
    title="The cheapest cure",
    minutes=25,
    difficulty=3,
    check=Check(
        trials=_trials,
        then=_iterations,
        rules=(
            Rule("fits", 3, _judge_fits),
            Rule("cheapest", 3, _judge_cheapest),
            Rule("never", 2, _judge_never),
        ),
    ),
)
