"""07/one_slow_stage: what caps a pipeline, read off a trace, and a cut that lifts the cap.

`one_slow_stage(trace, goal)` is asked for three traces (`slow_cases`). What it answers is compared
with the seconds of which the traces were made; so nothing depends on how busy the machine is. The
first cut is then run with stand-ins on an emulated cluster, and the report says what that gave.
"""

from __future__ import annotations

from collections.abc import Callable

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.parts import Part
from dtlab.units.unit07.slow_cases import Said, answers_of, runs_of, trials
from dtlab.units.unit07.slow_layers import Cut, Layers

__all__ = ["PART"]

_NEAR = 0.02  # of a ceiling
_BEST = 1.002  # times the best cut's slowest stage: rounding
_SPARE = 1  # microbatches more than the fewest
_CLOSE = 1e-9
_WAITS = blocked("judged once one_slow_stage returns a dict that can be read")

Objection = Callable[[Layers, Said], str]


def _judge(keys: set[str], right: str, objection: Objection, *, is_first: bool = False) -> Judge:
    """Judges what is said under these keys; the first criterion has to do with the form too."""

    def judge(seen: Seen) -> Verdict:
        if seen[0].mistakes:
            return lost(seen[0].mistakes[0]) if is_first else _WAITS
        for words, layers, said in answers_of(seen):
            odd = next((key for key in said.odd if key in keys), "")
            wrong = f'"{odd}" {said.odd[odd]}.' if odd else objection(layers, said)
            if wrong:
                return lost(f"{words}: {wrong}")
        return ok(right)

    return judge


def _another_stage(layers: Layers, said: Said) -> str:
    if said.stage == layers.slow:
        return ""
    why = "Which one is never idle once the first step is over?"
    if said.stage == layers.compiles:
        why = "It takes long in the first step, and never again."
    return f"stage {said.stage} is not what the others wait for. {why}"


def _another_ceiling(layers: Layers, said: Said) -> str:
    right = layers.ceiling(layers.even)
    if abs(said.ceiling - right) <= _NEAR * right:
        return ""
    return (
        f"no number of microbatches makes this cut {said.ceiling:.2f} times as fast as one rank: "
        "its ceiling is lower. From the second microbatch on, how often does one come out?"
        if said.ceiling > right
        else f"more microbatches make this cut more than {said.ceiling:.2f} times as fast as one "
        "rank: its ceiling is higher. From the second one on, how often does one come out?"
    )


def _a_slower_cut(layers: Layers, said: Said) -> str:
    times, best = layers.times(said.cut), max(layers.times(layers.best))
    if max(times) <= _BEST * best:
        return ""
    slowest = times.index(max(times))
    return (
        f"in {_spans(said.cut)} stage {slowest} takes {max(times) / best:.2f} times as long as "
        "the slowest stage of the best cut. What do layers cost once kernels are compiled, and "
        "are all cuts compared?"
    )


def _spans(cut: Cut) -> str:
    """Layers from first to last: "[0-20, 21-47]"."""
    ends = ((part[0], part[-1]) for part in cut)
    return f"[{', '.join(str(a) if a == b else f'{a}-{b}' for a, b in ends)}]"


def _too_few(layers: Layers, said: Said) -> str:
    got = layers.speedup(said.cut, said.num_microbatches)
    if got >= layers.goal - _CLOSE:
        return ""
    return (
        f"{said.num_microbatches} microbatches with your cut are {got:.2f} times as fast as one "
        f"rank, and {layers.goal:g} is the goal. With this cut the most is "
        f"{layers.ceiling(said.cut):.2f}."
    )


def _too_many(layers: Layers, said: Said) -> str:
    fewest = layers.fewest(said.cut)
    if fewest is None or said.num_microbatches <= fewest + _SPARE:
        return ""
    return (
        f"with your cut fewer than {said.num_microbatches} microbatches are {layers.goal:g} "
        "times as fast as one rank. Smaller microbatches make slower kernels."
    )


def _judge_goal(seen: Seen) -> Verdict:
    verdict = _judge({"cut", "num_microbatches"}, "as simulated, in all three", _too_few)(seen)
    if verdict.status != "ok" or len(seen) < 2 or seen[1].error is not None:
        return verdict
    measured = min(seen[1].results[0])
    return ok(f"{verdict.message}; measured here with stand-ins: {measured:.2f} times")


def _judge_fewest(seen: Seen) -> Verdict:
    if _judge_goal(seen).status != "ok":
        return blocked("judged once the goal is reached")
    return _judge({"num_microbatches"}, "no fewer would do", _too_many)(seen)


PART = Part(
    name="07/one_slow_stage",
    level=3,
    title="One slow stage",
    minutes=30,
    difficulty=2,
    check=Check(
        trials=trials,
        then=runs_of,
        rules=(
            Rule("stage", 2, _judge({"stage"}, "it caps each", _another_stage, is_first=True)),
            Rule("ceiling", 2, _judge({"ceiling"}, "sum / max", _another_ceiling)),
            Rule("cut", 3, _judge({"cut"}, "none has a faster slowest stage", _a_slower_cut)),
            Rule("goal", 3, _judge_goal),
            Rule("fewest", 1, _judge_fewest),
        ),
    ),
)
