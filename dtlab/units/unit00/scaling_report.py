"""00/scaling_report: what caps a run on N ranks, and what it would reach without that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from dtlab.grading.checking.checks import Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit00.jobs import CAUSES
from dtlab.units.unit00.recording import RecordedCheck
from dtlab.units.unit00.report_cases import Reported, Scaled, clear_job

__all__ = ["PART"]

_NEAR = 2e-3  # of a number; of a run's time, for what was lost

# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """A job for each cause, and three in weak scaling."""
    draw = random.Random(seed)
    strong = [clear_job(draw, cause, False, (1, 2, draw.choice((6, 7, 8)))) for cause in CAUSES]
    weak = [
        clear_job(draw, cause, True, (1, draw.choice((6, 7, 8))))
        for cause in ("cores", "imbalance", draw.choice(("latency", "bandwidth")))
    ]
    draw.shuffle(strong)
    return [Trial(1, [*strong, *weak])]


# Judges -----------------------------------------------------------------------------------------


def _reports(seen: Seen, topic: str = "made") -> Iterator[tuple[str, Scaled, Reported]]:
    """Each case in words, with what came back."""
    for one in seen:
        for number, results in enumerate(one.results):
            case = one.trial.cases[number]
            if isinstance(case, Scaled) and case.topic == topic:
                yield one.trial.words(number), case, results[0]


def _formless(seen: Seen) -> str:
    return next((one.mistakes[0] for one in seen if one.mistakes), "")


def _judge_numbers(seen: Seen) -> Verdict:
    if _formless(seen):
        return lost(_formless(seen))
    for words, case, found in _reports(seen):
        pairs = zip(("ranks", "speedup", "efficiency"), found.numbers, case.right.numbers,
                    strict=True)  # fmt: skip
        for name, got, right in pairs:
            if not abs(got - right) <= _NEAR * right:
                return lost(
                    f'{words}: report["{name}"] is {got:.4g}, not {right:.4g}. The report is on '
                    "the most ranks there are, beside one, for the scaling that is named."
                )
    return ok("ranks, speed-up and efficiency are right")


_ADVICE = {
    "input": 'Spans called "input", the mean over the ranks, less what one rank\'s share of that '
    "would be.",
    "cores": 'Spans called "forward" and "backward": on one rank, how long do they take, and what '
    "is a rank's share of it?",
    "serial": "All spans with other names. In strong scaling a rank's share of what one rank "
    "needs is 1/N of it; what does not shrink is lost.",
    "imbalance": "What `trace.idle` has, the mean over the ranks.",
    "latency": "Fit seconds = a + b x bytes to the collectives, each from when the last rank has "
    "come. The part of a in all their seconds is that of latency in what is exposed.",
    "bandwidth": "What is exposed, the mean over the ranks, and not latency.",
}


def _judge_lost(causes: tuple[str, ...], right: str) -> Judge:
    def judge(seen: Seen) -> Verdict:
        if _formless(seen):
            return blocked("judged once it returns a report")
        for words, case, found in _reports(seen):
            if "lost" in found.odd:
                return lost(f"{words}: {found.odd['lost']}")
            for cause in causes:
                got, wanted = found.lost[cause], case.right.lost[cause]
                if not abs(got - wanted) <= _NEAR * case.traces[max(case.runs)].duration:
                    return lost(
                        f"{words}: {1e3 * wanted:.1f} ms are lost to {cause}, and you have "
                        f"{1e3 * got:.1f} ms. {_ADVICE[cause]}"
                    )
        return ok(right)

    return judge


_PIECES = {
    "compute": ("input", "cores", "serial"),
    "waiting": ("imbalance",),
    "wire": ("latency", "bandwidth"),
}
_RIGHT = {
    "compute": "what compute loses is right: input, cores, serial",
    "waiting": "what is lost waiting for other ranks is right",
    "wire": "exposed communication is divided rightly: latency, bandwidth",
}
_JUDGES = {name: _judge_lost(_PIECES[name], _RIGHT[name]) for name in _PIECES}


def _after_lost(judge: Callable[[Seen], Verdict]) -> Judge:
    """Judged once all that is lost is right."""

    def judged(seen: Seen) -> Verdict:
        if _judge_numbers(seen).status != "ok":
            return blocked("judged once speed-up and efficiency are right")
        if any(one(seen).status != "ok" for one in _JUDGES.values()):
            return blocked("judged once what is lost is right")
        return judge(seen)

    return judged


def _judge_cause(seen: Seen) -> Verdict:
    for words, case, found in (*_reports(seen), *_reports(seen, "recorded")):
        if found.cause != case.right.cause:
            return lost(
                f'{words}: report["cause"] is {found.cause!r}. {_most(found)} Which of the six '
                "does the most of the gap come from?"
            )
    return ok("it names what caps each run, on recorded ranks too")


def _most(found: Reported) -> str:
    seconds = sorted(((1e3 * one, name) for name, one in found.lost.items()), reverse=True)
    return "Lost are " + ", ".join(f"{one:.1f} ms to {name}" for one, name in seconds[:3]) + "."


def _judge_levers(seen: Seen) -> Verdict:
    for words, case, found in _reports(seen):
        if "levers" in found.odd:
            return lost(f"{words}: {found.odd['levers']}")
        names = [name for name, _ in found.levers]
        if names != [name for name, _ in case.right.levers]:
            return lost(
                f"{words}: the levers are {' and '.join(names)}. {_most(found)} Name the two that "
                "bring most, the better one first."
            )
        for (name, got), (_, right) in zip(found.levers, case.right.levers, strict=True):
            if not abs(got - right) <= _NEAR * right:
                return lost(
                    f"{words}: without what is lost to {name} the speed-up would be {right:.3f}, "
                    f"and you have {got:.3f}. How long would the run take then?"
                )
    return ok("the two levers that bring most, and how far each would bring it")


PART = Part(
    name="00/scaling_report",
    level=2,
    title="The scaling report",
    minutes=25,
    difficulty=3,
    check=RecordedCheck(
        trials=_trials,
        rules=(
            Rule("numbers", 2, _judge_numbers),
            Rule("compute", 4, _JUDGES["compute"]),
            Rule("waiting", 1, _JUDGES["waiting"]),
            Rule("wire", 3, _JUDGES["wire"]),
            Rule("cause", 2, _after_lost(_judge_cause)),
            Rule("levers", 2, _after_lost(_judge_levers)),
        ),
    ),
)
