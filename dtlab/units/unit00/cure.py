"""00/cure: find the cheapest plan with which a model fits. Real iterations test each plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit00.settings import PLAN, draw_setting

__all__ = ["NEEDED", "PART", "Curing", "Plan", "cost", "plans_for"]

Plan = dict[str, Any]

_LIMIT = 20.0  # seconds for the launch, which takes 0.5 s

# Plans and their cost --------------------------------------------------------------------------


def plans_for(setting: Mapping[str, Any]) -> list[Plan]:
    """All plans by increasing cost: early clearing is free, and checkpoints cost most."""
    parts = [n for n in range(1, setting["samples"] + 1) if setting["samples"] % n == 0]
    plans = [
        {"clear": clear, "microbatches": n, "checkpoint": again}
        for again in (False, True)
        for n in parts
        for clear in ("before backward", "after step")
    ]
    return sorted(plans, key=cost)


def cost(plan: Mapping[str, Any]) -> tuple[bool, int]:
    """Sort key: whether the plan uses checkpoints, then its number of microbatches."""
    return bool(plan["checkpoint"]), int(plan["microbatches"])


# Models -----------------------------------------------------------------------------------------

_AGAIN: Plan = {"checkpoint": True}

# By topic: a plan that must fit, and the next cheaper plans, which must not fit.
_PLANS: dict[str, tuple[Plan, tuple[Plan, ...]]] = {
    "clear": ({}, ({},)),  # the limit equals the plan's peak
    "halves": ({"microbatches": 2}, ({},)),
    "more": ({"microbatches": 4}, ({"microbatches": 2},)),
    "checkpoint": (_AGAIN, ({},)),
    "both": (_AGAIN | {"microbatches": 2}, (_AGAIN, {"microbatches": 2})),
    "thirds": ({"microbatches": 3}, ({"microbatches": 2},)),
    "odd": ({"microbatches": 3}, ({},)),
}
_NEVER = {"never": _AGAIN | {"microbatches": 4}, "step": _AGAIN}  # even these do not fit
_TOPICS = ("clear", "halves", "more", "checkpoint", "both", "never", "step", "thirds", "odd")

NEEDED = {topic: cost(PLAN | plan) for topic, (plan, _) in _PLANS.items()}


def _limited(draw: random.Random, topic: str) -> Plan:
    """A setting with a limit: the plan of `topic` is the cheapest that fits, or none fits."""
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

    def most(plan: Plan) -> int:
        return max(peaks(setting | PLAN | plan).values())

    if topic in _NEVER:
        above = most(_NEVER[topic])
        return setting | {"limit": (round(0.9 * above) + above) // 2}
    fits, too_large = _PLANS[topic]
    return setting | {"limit": (most(fits) + min(map(most, too_large))) // 2}


@dataclass(frozen=True)
class Curing(Faulty):
    """A call of `cure(setting)`. The setting contains the memory limit.

    `cure` is a key of `_PLANS` or `_NEVER`, which list plans that fit and plans that do not.
    """

    alone = True
    topic = "fits"

    setting: Plan = field(hash=False)
    cure: str

    def __str__(self) -> str:
        return (
            f"widths {self.setting['widths']}, {self.setting['batch']} rows in "
            f"{counted(self.setting['samples'], 'sample')}, {self.setting['optimizer']}, "
            f"limit {self.setting['limit']:,} bytes"
        )

    def given(self, rank: int, world_size: int) -> Any:
        return self.setting

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        plan = fn({**given, "widths": list(given["widths"])})
        if plan is not None and not isinstance(plan, dict):
            return {"form": f"returns a {type(plan).__name__}"}
        return {"plan": plan and {key: plan[key] for key in PLAN if key in plan}}

    def opened(self, result: Any) -> Noted:
        if "form" in result:
            return Noted({"form": str(result["form"])[:60]})
        if result["plan"] is None:
            return Noted({"plan": None})
        plan = {key: self.setting[key] for key in PLAN} | dict(result["plan"])
        plan["checkpoint"] = bool(plan["checkpoint"])
        if plan not in plans_for(self.setting):
            samples = counted(self.setting["samples"], "sample")
            return Noted({"form": f"returns {_words(plan)}, which is no valid plan for {samples}"})
        return Noted({"plan": plan})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from dtlab.units.unit00.measured import peaks

        if results[0].get("form"):
            message = f"cure {results[0]['form']}. Return a plan as a dict, or None."
            yield from ((name, message) for name in ("form", "fits"))
            return
        plan = results[0]["plan"]
        if self.cure in _NEVER:
            if plan is not None:
                yield (
                    "never",
                    "the model does not fit even with all cures together, and cure returns "
                    f"{_words(plan)}. Return None: these cures do not shrink the tensors that "
                    "are too large here.",
                )
            return
        if plan is None:
            yield "fits", "cure returns None, but there is a plan that fits."
            return
        sizes = peaks(self.setting | plan)
        phase = max(sizes, key=lambda name: sizes[name])
        if sizes[phase] > self.setting["limit"]:
            yield (
                "fits",
                f"with {_words(plan)} a real run peaks at {sizes[phase]:,} bytes, in phase "
                f"{phase!r}. Which tensors exist in that phase, and which cure shrinks them?",
            )
        if cost(plan) > NEEDED[self.cure]:
            yield (
                "cheapest",
                f"{_words(plan)} fits, and a cheaper plan does too. Clearing costs nothing, "
                "microbatches cost little, and checkpoints cost most.",
            )


def _words(plan: Plan) -> str:
    return "{" + ", ".join(f'"{key}": {plan[key]!r}' for key in PLAN)[:120] + "}"


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    return [Trial(1, [Curing(_limited(draw, topic), topic) for topic in _TOPICS], limit=_LIMIT)]


PART = Part(
    name="00/cure",
    level=3,
    title="The cheapest cure",
    minutes=25,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("fits", 3, "real iterations with each plan stay within the limit"),
            rule("cheapest", 3, "no cheaper plan fits", "fits"),
            rule("never", 2, "None if weights and optimizer state alone are too large", "form"),
        ),
    ),
)
