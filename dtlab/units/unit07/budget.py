"""07/budget: a schedule within a step's time and a rank's memory, for several settings.

`budget(setting)` is asked on a rank (`budget_cases`). What it returns is carried out by ranks of
ours with a small model, for what they hold and for the gradients; seconds are simulated. The
settings, and what else there is in each of them, are in `budget_settings`.
"""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.parts import Part
from dtlab.schedules import Schedule, stage_ranks
from dtlab.units.unit07.budget_cases import Planned, Ran, schedules_of, steps_of, trials
from dtlab.units.unit07.budget_settings import Setting, needs_of

__all__ = ["PART"]

_CLOSE = 1e-9  # what rounding of floats may do
_MEMORY = "no rank holds more than fits, in three settings"
_STEP = "no step takes longer than it may, in three settings"
_BOTH = "both, where no schedule of the library does"
_WAITS = blocked("judged once all four schedules can run")


def _judge_runs(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    trouble = next((one.trouble for one in seen[1:] if one.error is not None), "")
    if trouble:
        return blocked(f"{trouble}\nThat is not the schedule's doing: run the check again.")
    for one in seen[1:]:
        if one.mistakes:
            return lost(one.mistakes[0])
    return ok("carried out by ranks, all four leave the gradients of one process")


# Memory -----------------------------------------------------------------------------------------


def _too_much_held(words: str, setting: Setting, schedule: Schedule, ran: list[Ran]) -> str:
    peaks = [one.peak for one in ran]
    count = 1 + max(action.microbatch for row in schedule for action in row)
    num_chunks = len(stage_ranks(schedule)) // setting.ranks
    held = max(peaks) * setting.samples / count / num_chunks
    if held <= setting.memory + _CLOSE:
        return ""
    piece = "microbatches" if num_chunks == 1 else f"{num_chunks}ths of microbatches"
    return (
        f"{words}: rank {peaks.index(max(peaks))} holds {max(peaks)} {piece} of "
        f"{setting.samples // count} samples at its peak, activations of {held:g} samples, where "
        f"{setting.memory:g} fit. Fewer in flight, or smaller ones?"
    )


# Time -------------------------------------------------------------------------------------------


def _too_slow(words: str, setting: Setting, schedule: Schedule) -> str:
    seconds, _ = needs_of(setting.given, schedule)
    if seconds <= setting.step + _CLOSE:
        return ""
    forwards = max(sum(one.kind == "F" for one in row) for row in schedule)
    fixed = 2 * setting.fixed * forwards
    each = setting.forward + setting.backward_input + setting.backward_weight
    idle = seconds - fixed - setting.samples * each
    return (
        f"{words}: a step takes {1e3 * seconds:.1f} ms, {1e3 * (seconds - setting.step):.1f} too "
        f"many. Of them a rank computes {1e3 * setting.samples * each:.0f}, spends "
        f"{1e3 * fixed:.0f} on what every F and every backward costs, and is idle for "
        f"{1e3 * idle:.0f}. Which of these would other microbatches, or another schedule, change?"
    )


# The criteria -----------------------------------------------------------------------------------


def _judge(topic: str, right: str, *, memory: bool, step: bool) -> Judge:
    """Judges the limits of the settings of a topic."""

    def judge(seen: Seen) -> Verdict:
        if _judge_runs(seen).status != "ok":
            return _WAITS
        wrong = next(filter(None, (_objection(*each, memory, step) for each in asked(seen))), "")
        return lost(wrong) if wrong else ok(right)

    def asked(seen: Seen) -> list[tuple[str, Planned, Schedule, list[Ran]]]:
        each = zip(schedules_of(seen), seen[1].results, strict=True)
        return [(*planned, ran) for planned, ran in each if planned[1].topic == topic]

    return judge


def _objection(
    words: str, case: Planned, schedule: Schedule, ran: list[Ran], memory: bool, step: bool
) -> str:
    over = _too_much_held(words, case.setting, schedule, ran) if memory else ""
    return over or (_too_slow(words, case.setting, schedule) if step else "")


PART = Part(
    name="07/budget",
    level=3,
    title="A schedule within a budget",
    minutes=35,
    difficulty=3,
    check=Check(
        trials=trials,
        then=steps_of,
        rules=(
            Rule("runs", 2, _judge_runs),
            Rule("memory", 3, _judge("library", _MEMORY, memory=True, step=False)),
            Rule("step", 3, _judge("library", _STEP, memory=False, step=True)),
            Rule("between", 4, _judge("between", _BOTH, memory=True, step=True)),
        ),
    ),
)
