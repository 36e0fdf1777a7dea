"""00/cure: the cheapest plan by which a model fits, judged by real iterations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit00.settings import PLAN, draw_setting

__all__ = ["NEEDED", "PART", "Curing", "Plan", "cost", "plans_for"]

Plan = dict[str, Any]

_LIMIT = 20.0  # seconds for the launch, which takes half of one

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

_AGAIN: Plan = {"checkpoint": True}

# For each topic a plan that has to fit, and the next cheaper ones, which must not.
_PLANS: dict[str, tuple[Plan, tuple[Plan, ...]]] = {
    "clear": ({}, ({},)),  # to the byte
    "halves": ({"microbatches": 2}, ({},)),
    "more": ({"microbatches": 4}, ({"microbatches": 2},)),
    "checkpoint": (_AGAIN, ({},)),
    "both": (_AGAIN | {"microbatches": 2}, (_AGAIN, {"microbatches": 2})),
    "thirds": ({"microbatches": 3}, ({"microbatches": 2},)),
    "odd": ({"microbatches": 3}, ({},)),
}
_NEVER = {"never": _AGAIN | {"microbatches": 4}, "step": _AGAIN}  # and not even these fit
_TOPICS = ("clear", "halves", "more", "checkpoint", "both", "never", "step", "thirds", "odd")

NEEDED = {topic: cost(PLAN | plan) for topic, (plan, _) in _PLANS.items()}


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

    def most(plan: Plan) -> int:
        return max(peaks(setting | PLAN | plan).values())

    if topic in _NEVER:
        above = most(_NEVER[topic])
        return setting | {"limit": (round(0.9 * above) + above) // 2}
    fits, others = _PLANS[topic]
    return setting | {"limit": (most(fits) + min(map(most, others))) // 2}


@dataclass(frozen=True)
class Curing(Faulty):
    """`cure(setting)`, whose limit is in the setting; `cure` says what is needed."""

    alone = True
    topic = "fits"

    setting: Plan = field(hash=False)
    cure: str

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
        if found is not None and not isinstance(found, dict):
            return {"form": f"returns a {type(found).__name__}"}
        return {"plan": found and {key: found[key] for key in PLAN if key in found}}

    def opened(self, result: Any) -> Noted:
        if "form" in result:
            return Noted({"form": str(result["form"])[:60]})
        if result["plan"] is None:
            return Noted({"plan": None})
        plan = {key: self.setting[key] for key in PLAN} | dict(result["plan"])
        plan["checkpoint"] = bool(plan["checkpoint"])
        if plan not in plans_for(self.setting):
            samples = f"{self.setting['samples']} samples"
            return Noted({"form": f"returns {_words(plan)}, and that is no plan for {samples}"})
        return Noted({"plan": plan})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from dtlab.units.unit00.measured import peaks

        if results[0].get("form"):
            words = f"cure {results[0]['form']}. Return a plan as a dict, or None."
            yield from ((name, words) for name in ("form", "fits"))
            return
        plan = results[0]["plan"]
        if self.cure in _NEVER:
            if plan is not None:
                yield (
                    "never",
                    "with every cure together it does not fit, and cure returns "
                    f"{_words(plan)}. Return None: what is too large is not what these cures "
                    "shrink.",
                )
            return
        if plan is None:
            yield "fits", "returns None, and there is a plan that fits."
            return
        sizes = peaks(self.setting | plan)
        phase = max(sizes, key=lambda name: sizes[name])
        if sizes[phase] > self.setting["limit"]:
            yield (
                "fits",
                f"by {_words(plan)} a real run has {sizes[phase]:,} bytes at its peak, in phase "
                f"{phase!r}. What is there in that phase, and which cure is for it?",
            )
        if cost(plan) > NEEDED[self.cure]:
            yield (
                "cheapest",
                f"{_words(plan)} fits, and a cheaper plan does too. Clearing costs nothing, "
                "microbatches little, checkpoints most.",
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
            rule("fits", 3, "real iterations by each plan stay within the limit"),
            rule("cheapest", 3, "no cheaper plan fits", "fits"),
            rule("never", 2, "None where states and weights alone are too much", "form"),
        ),
    ),
)
